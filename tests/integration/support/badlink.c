/* A network card that is broken, for one process tree: preloaded, it spoils or delays what is sent to a peer in large pieces.
 *
 * BAD_LINK=corrupt       one bit of each piece of 8 KiB or more is flipped
 * BAD_LINK=slow          each piece of 32 KiB or more takes 2 ms for 64 KiB longer
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int mode(void) {
    const char *text = getenv("BAD_LINK");
    return text == NULL ? 0 : strcmp(text, "corrupt") == 0 ? 1 : strcmp(text, "slow") == 0 ? 2 : 0;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    int type;
    socklen_t size = sizeof type;
    size_t total = 0;
    if (real == NULL)
        real = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    if (mode() != 0 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0) {
        struct iovec last = parts[count - 1];
        if (mode() == 1 && last.iov_len >= 8192) {
            char *copy = malloc(last.iov_len);
            struct iovec mine[8];
            if (copy != NULL && count <= 8) {
                memcpy(mine, parts, (size_t)count * sizeof *parts);
                memcpy(copy, last.iov_base, last.iov_len);
                copy[last.iov_len / 2] ^= 1;
                mine[count - 1].iov_base = copy;
                ssize_t sent = real(fd, mine, count);
                free(copy);
                return sent;
            }
            free(copy);
        }
        if (mode() == 2 && total >= 32768)
            usleep((useconds_t)(total / 65536 * 2000 + 1000));
    }
    return real(fd, parts, count);
}
