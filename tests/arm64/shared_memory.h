/* Where the memory is that the tests and the process under qemu share. */
#define MEMORY_START ((char *)0x200000000000)
#define MEMORY_SIZE (4L << 30)
