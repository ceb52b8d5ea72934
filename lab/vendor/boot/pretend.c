/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN of another kernel, loaded into every program of a lab host by /etc/ld.so.preload.
 *
 * uname(2) answers with release and build of the pretended kernel in any program; with its machine only in programs
 * that are asked for it (systemd aborts on a machine it was not built for). The page size is the pretended one only in
 * programs that are asked for it and map nothing by it: getconf and the system's Python interpreters. All others, an
 * engine among them, keep the real one. What is pretended stands in STATE, four lines: release, machine, page size in
 * bytes, build.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define STATE "/usr/lib/lab/running-kernel"

/* Beginnings of the programs' paths; those before the NULL are asked for the page size as well. */
static const char *const asked[] = {"/usr/bin/getconf", "/usr/bin/python", "/usr/libexec/platform-python",
                                    "/opt/lab-python/bin/", NULL, "/usr/bin/uname", "/usr/bin/arch", "/usr/bin/lscpu",
                                    "/usr/bin/rpm", NULL};

/* Copies line `number` of STATE into `target`; returns 0 when there is none. */
static int line(int number, char *target, size_t size) {
    char text[1024];
    int file = open(STATE, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    char *start = text;
    while (number-- && start) start = (start = strchr(start, '\n')) ? start + 1 : NULL;
    if (!start) return 0;
    size_t count = strcspn(start, "\n");
    if (!count || count >= size) return 0;
    memcpy(target, start, count);
    target[count] = 0;
    return 1;
}

/* Whether this program is one of those from `list` on. */
static int is_asked(const char *const *list) {
    char program[256];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return 0;
    program[length] = 0;
    for (; *list; list++)
        if (!strncmp(program, *list, strlen(*list))) return 1;
    return 0;
}

int uname(struct utsname *names) {
    int (*real)(struct utsname *) = (int (*)(struct utsname *))dlsym(RTLD_NEXT, "uname");
    int result = real ? real(names) : -1;
    if (!result) {
        line(0, names->release, sizeof names->release);
        line(3, names->version, sizeof names->version);
        if (is_asked(asked) || is_asked(asked + 5)) line(1, names->machine, sizeof names->machine);
    }
    return result;
}

static long page_size(void) {
    char number[32];
    return is_asked(asked) && line(2, number, sizeof number) ? atol(number) : 0;
}

long sysconf(int name) {
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    if (!real) return -1;
    long value = real(name), size;
    if ((name == _SC_PAGESIZE || name == _SC_PHYS_PAGES || name == _SC_AVPHYS_PAGES) && (size = page_size()) > 0)
        /* as many bytes of memory as before */
        return name == _SC_PAGESIZE ? size : value / (size / real(_SC_PAGESIZE));
    return value;
}

int getpagesize(void) { return (int)sysconf(_SC_PAGESIZE); }
