// Uses SIGUSR1 itself: a handler that chains to the earlier one, a kept pointer to that, sigwait, a signalfd. Prints
// the result of each command.
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static struct sigaction old;
static volatile sig_atomic_t own;
static int waited, fd = -1;

static int callable(void) {
  return old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN;
}

static void handler(int signal) {
  own++;
  if (callable()) old.sa_handler(signal);
}

static void *waiter(void *unused) {
  sigset_t set;
  int signal;
  (void)unused;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  while (sigwait(&set, &signal) == 0) __atomic_add_fetch(&waited, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void block(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int main(int argc, char **argv) {
  char line[100];
  const char *mode = argc > 1 ? argv[1] : "";
  if (!strcmp(mode, "sigwait")) {
    pthread_t thread;
    block();
    pthread_create(&thread, NULL, waiter, NULL);
  } else if (!strcmp(mode, "signalfd")) {
    sigset_t set;
    block();
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    fd = signalfd(-1, &set, SFD_NONBLOCK);
  } else if (!strcmp(mode, "blocked")) {
    block();
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("ready");
  while (fgets(line, sizeof line, stdin)) {
    int n = 0;
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "install")) {
      struct sigaction a = {.sa_handler = handler};
      sigaction(SIGUSR1, &a, &old);
      n = callable();
    } else if (!strcmp(line, "ask")) {
      sigaction(SIGUSR1, NULL, &old);
      n = callable();
    } else if (!strcmp(line, "restore")) {
      sigaction(SIGUSR1, &old, NULL);
    } else if (!strcmp(line, "call")) {
      if (callable()) old.sa_handler(SIGUSR1);
    } else if (!strcmp(line, "raise")) {
      raise(SIGUSR1);
    } else if (!strcmp(line, "own")) {
      n = own;
    } else if (!strcmp(line, "waited")) {
      n = __atomic_load_n(&waited, __ATOMIC_SEQ_CST);
    } else if (!strcmp(line, "read")) {
      struct signalfd_siginfo info;
      while (read(fd, &info, sizeof info) == sizeof info) n++;
    } else if (!strcmp(line, "alloc")) {
      free(malloc(100));
    } else if (!strcmp(line, "quit")) {
      break;
    }
    printf("done %d\n", n);
  }
  puts("bye");
  return 0;
}
