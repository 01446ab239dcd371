/* Runs under qemu: loads compiled kernels and calls their functions for the tests. `call_kernels LIBRARY FILE`, where FILE
   is the number of the open file behind the shared memory. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "shared_memory.h"

/* Whole numbers and addresses are passed in registers and on the stack in their order, and the only float, wherever it
   stands, in a register of its own (Procedure Call Standard for the Arm 64-bit Architecture, section 6.8.2). */
struct call {
    char function[32];
    int64_t numbers[20];
    double fraction;
};

typedef int64_t function(float, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

static void fail(const char *what) {
    fprintf(stderr, "call_kernels: %s\n", what);
    exit(1);
}

int main(int argc, char **argv) {
    struct call c;
    const int64_t *n = c.numbers;
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) fail(dlerror());
    char *memory = mmap(MEMORY_START, MEMORY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, atoi(argv[2]), 0);
    if (memory != MEMORY_START) fail("the memory cannot be mapped");
    while (fread(&c, sizeof c, 1, stdin) == 1) {
        function *called = (function *)dlsym(library, c.function);
        if (!called) fail(dlerror());
        int64_t result = called(c.fraction, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12],
                                n[13], n[14], n[15], n[16], n[17], n[18], n[19]);
        fwrite(&result, sizeof result, 1, stdout);
        fflush(stdout);
    }
    return 0;
}
