/* Makes system calls of one process fail and moves its clock, by a file that the test writes; see system_faults.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SYNC = 1, WRITE = 2, CREATE = 4, NAME = 8, FOLDER = 16 };

struct orders {
    int64_t clock_s; /* added to the clock */
    int64_t calls;   /* which kinds fail, and are counted */
    int64_t at;      /* the number of the call that fails, from 1 */
    int64_t lasting; /* whether all later ones fail, too */
    int64_t error;
    int64_t seen;
    int64_t failed;
    char folder[512]; /* only calls on files below it */
};

static struct orders *orders;
static int notes = -1;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("TIDEMARK_SYSTEM_FAULTS");
    const char *log = getenv("TIDEMARK_SYSTEM_NOTES");
    if (file) {
        int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
        if (fd >= 0) {
            void *mapped = mmap(NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (mapped != MAP_FAILED) orders = mapped;
            syscall(SYS_close, fd);
        }
    }
    if (log) notes = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
}

static void note(const char *what, const char *path, const char *other) {
    char line[2 * PATH_MAX + 16];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", what, path, other ? other : "");
    if (notes >= 0) syscall(SYS_write, notes, line, (size_t)length);
}

static const char *of_descriptor(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

static const char *of_name(const char *name, char *path) {
    if (name[0] == '/') return name;
    if (!getcwd(path, PATH_MAX - strlen(name) - 2)) return name;
    strcat(path, "/");
    return strcat(path, name);
}

static int is_watched(void) { return orders && (orders->calls || notes >= 0) && orders->folder[0]; }

static int is_below(const char *path) { return strncmp(path, orders->folder, strlen(orders->folder)) == 0; }

/* Whether this call is to fail; errno is set then. */
static int fails(int kind, const char *path) {
    if (!(orders->calls & kind) || !is_below(path)) return 0;
    int64_t number = __atomic_add_fetch(&orders->seen, 1, __ATOMIC_SEQ_CST);
    if (number != orders->at && !(orders->lasting && orders->at && number > orders->at)) return 0;
    __atomic_add_fetch(&orders->failed, 1, __ATOMIC_SEQ_CST);
    errno = (int)orders->error;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_DESCRIPTOR(result, name, kind, what, parameters, arguments)            \
    result name parameters {                                                      \
        static __typeof__(&name) real;                                            \
        char path[PATH_MAX];                                                      \
        if (!real) real = REAL(name);                                             \
        if (!is_watched()) return real arguments;                                 \
        int before = errno;                                                       \
        if (fails(kind, of_descriptor(fd, path))) return -1;                      \
        errno = before;                                                           \
        result done = real arguments;                                             \
        if (done >= 0 && notes >= 0 && is_below(path)) note(what, path, NULL);    \
        return done;                                                              \
    }

ON_DESCRIPTOR(int, fsync, SYNC, "sync", (int fd), (fd))
ON_DESCRIPTOR(int, fdatasync, SYNC, "sync", (int fd), (fd))
ON_DESCRIPTOR(ssize_t, write, WRITE, "write", (int fd, const void *from, size_t size), (fd, from, size))
ON_DESCRIPTOR(ssize_t, pwrite, WRITE, "write", (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
ON_DESCRIPTOR(ssize_t, pwrite64, WRITE, "write", (int fd, const void *from, size_t size, off64_t at),
              (fd, from, size, at))
ON_DESCRIPTOR(ssize_t, writev, WRITE, "write", (int fd, const struct iovec *from, int count), (fd, from, count))
ON_DESCRIPTOR(ssize_t, pwritev, WRITE, "write", (int fd, const struct iovec *from, int count, off_t at),
              (fd, from, count, at))
ON_DESCRIPTOR(ssize_t, pwritev64, WRITE, "write", (int fd, const struct iovec *from, int count, off64_t at),
              (fd, from, count, at))

#define ON_NAME(name, kind, what, from, to, parameters, arguments)                          \
    int name parameters {                                                                   \
        static __typeof__(&name) real;                                                      \
        char path[PATH_MAX], other[PATH_MAX];                                               \
        if (!real) real = REAL(name);                                                       \
        if (!is_watched()) return real arguments;                                           \
        const char *target = of_name(to, path);                                             \
        if (fails(kind, target)) return -1;                                                 \
        int done = real arguments;                                                          \
        if (done >= 0 && notes >= 0 && is_below(target)) note(what, of_name(from, other), target); \
        return done;                                                                        \
    }

ON_NAME(rename, NAME, "rename", a, b, (const char *a, const char *b), (a, b))
ON_NAME(renameat, NAME, "rename", a, b, (int x, const char *a, int y, const char *b), (x, a, y, b))
ON_NAME(link, NAME, "link", a, b, (const char *a, const char *b), (a, b))
ON_NAME(linkat, NAME, "link", a, b, (int x, const char *a, int y, const char *b, int flags), (x, a, y, b, flags))
ON_NAME(mkdir, FOLDER, "folder", a, a, (const char *a, mode_t mode), (a, mode))
ON_NAME(mkdirat, FOLDER, "folder", a, a, (int x, const char *a, mode_t mode), (x, a, mode))
ON_NAME(unlink, 0, "unlink", a, a, (const char *a), (a))
ON_NAME(unlinkat, 0, "unlink", a, a, (int x, const char *a, int flags), (x, a, flags))

#define ON_OPEN(name, parameters, arguments)                                                       \
    int name parameters {                                                                          \
        static int (*real) parameters;                                                             \
        char path[PATH_MAX];                                                                       \
        if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name);                               \
        mode_t mode = 0;                                                                           \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                       \
            va_list rest;                                                                          \
            va_start(rest, flags);                                                                 \
            mode = va_arg(rest, mode_t);                                                           \
            va_end(rest);                                                                          \
        }                                                                                          \
        if (!(flags & O_CREAT) || !is_watched()) return real arguments;                            \
        const char *target = of_name(a, path);                                                     \
        if (fails(CREATE, target)) return -1;                                                      \
        int done = real arguments;                                                                 \
        if (done >= 0 && notes >= 0 && is_below(target)) note("create", target, NULL);             \
        return done;                                                                               \
    }

ON_OPEN(open, (const char *a, int flags, ...), (a, flags, mode))
ON_OPEN(open64, (const char *a, int flags, ...), (a, flags, mode))
ON_OPEN(openat, (int x, const char *a, int flags, ...), (x, a, flags, mode))
ON_OPEN(openat64, (int x, const char *a, int flags, ...), (x, a, flags, mode))

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int done = real(clock, now);
    if (done == 0 && orders && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += orders->clock_s;
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "gettimeofday");
    int done = real(now, zone);
    if (done == 0 && orders) now->tv_sec += orders->clock_s;
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
