/* malloc for the tests' own process, in memory that a process under qemu maps at the same addresses. It is preloaded, so
   that tensors and ctypes' structures lie there. Blocks are powers of two and kept in lists when they are freed. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared_memory.h"

#define CLASSES 40
#define SMALLEST 128

/* What lies before each address that is given. */
struct header {
    char *block;
    size_t size;
};

static int file = -1;
static char *next;
static struct header *freed[CLASSES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The file behind the memory. */
int shared_memory(void) { return file; }

static void open_memory(void) {
    file = memfd_create("octavo-arm64", 0);
    if (file < 0 || ftruncate(file, MEMORY_SIZE)) _exit(99);
    next = mmap(MEMORY_START, MEMORY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (next != MEMORY_START) _exit(99);
}

static struct header *header_of(void *memory) { return (struct header *)memory - 1; }

static void *allocate(size_t size, size_t alignment) {
    int class = 0;
    if (alignment < 64) alignment = 64;
    while (((size_t)SMALLEST << class) < size + alignment + sizeof(struct header)) class++;
    pthread_mutex_lock(&lock);
    if (file < 0) open_memory();
    char *block = (char *)freed[class];
    if (block) freed[class] = *(struct header **)block;
    else if (next + (SMALLEST << class) <= MEMORY_START + MEMORY_SIZE) block = next, next += (size_t)SMALLEST << class;
    pthread_mutex_unlock(&lock);
    if (!block) return errno = ENOMEM, NULL;
    void *memory = (void *)(((uintptr_t)block + sizeof(struct header) + alignment - 1) & -alignment);
    *header_of(memory) = (struct header){block, (size_t)SMALLEST << class};
    return memory;
}

void *malloc(size_t size) { return allocate(size, 0); }

void free(void *memory) {
    if (!memory) return;
    struct header h = *header_of(memory);
    int class = __builtin_ctzl(h.size / SMALLEST);
    pthread_mutex_lock(&lock);
    *(struct header **)h.block = freed[class];
    freed[class] = (struct header *)h.block;
    pthread_mutex_unlock(&lock);
}

size_t malloc_usable_size(void *memory) {
    return memory ? header_of(memory)->block + header_of(memory)->size - (char *)memory : 0;
}

void *calloc(size_t count, size_t size) {
    size_t all;
    if (__builtin_mul_overflow(count, size, &all)) return errno = ENOMEM, NULL;
    void *memory = allocate(all, 0);
    return memory ? memset(memory, 0, all) : NULL;
}

void *realloc(void *memory, size_t size) {
    size_t had = malloc_usable_size(memory);
    if (memory && size <= had) return memory;
    void *more = allocate(size, 0);
    if (more && memory) memcpy(more, memory, had), free(memory);
    return more;
}

int posix_memalign(void **to, size_t alignment, size_t size) { return (*to = allocate(size, alignment)) ? 0 : ENOMEM; }
void *aligned_alloc(size_t alignment, size_t size) { return allocate(size, alignment); }
void *memalign(size_t alignment, size_t size) { return allocate(size, alignment); }
