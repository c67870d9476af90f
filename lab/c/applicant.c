// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A test program for rules that give real-time priority, and the worst that such programs do. In: what to do, and for
 * how long. Out: lines about its own policy; times are CLOCK_MONOTONIC. It never asks for priority itself, and every
 * process of it ends by itself: at the given time, by SIGALRM soon after it, or by the kernel after HARD_CPU_S of a
 * processor for each thread or HARD_REALTIME_US of one without a pause.
 *
 *   start RATE COUNT ONE_IN LIMIT_MS OTHER MATCHED TASK...
 *                                                    starts programs, each ONE_IN-th of them MATCHED, whose TASK is
 *                                                    followed by EXEC_NS and LIMIT_MS: "started WELL NS", how many
 *                                                    ended well, and how long it took to start all
 *   await EXEC_NS LIMIT_MS                           "raised NS", from EXEC_NS until it has priority, or "missed"
 *   reach ADDRESS PORT EXEC_NS LIMIT_MS              "raised NS", from EXEC_NS until its connection there has a
 *                                                    congestion control of giveway's, or "missed"; sends a little until
 *                                                    LIMIT_MS
 *   leave                                            nothing, or "wrong" if it has priority
 *   spin SECONDS CPU...                              a thread on each CPU: "spun CPU RAISED_MS DEMOTED_MS CPU_MS"
 *   bomb COUNT UNTIL_NS                              COUNT processes in all, each: "bombed CPU_MS...", for each
 *                                                    SLOT_NS before UNTIL_NS, the last first
 *   nibble BURST_US PERIOD_US SECONDS CPU            computes BURST of each PERIOD: as `spin`
 *
 * RAISED_MS: from the start of the thread; DEMOTED_MS: from there until it has lost priority; -1: never. CPU_MS: CPU
 * time with priority.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL
#define NS_PER_MS 1000000.0
/* Between two checks of its own policy, asleep and computing. */
#define NAP_NS 100000
#define STEPS 20000
#define HARD_CPU_S 8
#define HARD_REALTIME_US 3000000
#define MOST_THREADS 64
#define MOST_WORDS 8
#define SLOT_NS (NS_PER_S / 2)
#define SLOTS 16

static int64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void sleep_until(int64_t when_ns)
{
	struct timespec when = { when_ns / NS_PER_S, when_ns % NS_PER_S };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

/* Of the calling thread. */
static int has_priority(void)
{
	int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;

	return policy != SCHED_OTHER && policy != SCHED_BATCH && policy != SCHED_IDLE;
}

static void compute(void)
{
	for (volatile int step = 0; step < STEPS; step++)
		;
}

/* The kernel counts the time of all threads together. */
static void limit(int64_t seconds, int threads)
{
	struct rlimit cpu = { HARD_CPU_S * threads, HARD_CPU_S * threads }, realtime = { HARD_REALTIME_US, HARD_REALTIME_US };

	setrlimit(RLIMIT_CPU, &cpu);
	setrlimit(RLIMIT_RTTIME, &realtime);
	alarm(seconds + 2);
}

/* Collects ended children; returns how many ended well. */
static int64_t reap(int options)
{
	int64_t well = 0;
	int status;

	while (waitpid(-1, &status, options) > 0)
		well += WIFEXITED(status) && WEXITSTATUS(status) == 0;
	return well;
}

static int start(int64_t rate, int64_t count, int64_t one_in, char *limit_ms, char *other, int words, char **matched)
{
	int64_t begun = now_ns(CLOCK_MONOTONIC), well = 0;

	/* It has to keep its pace under load; its children have ordinary priority. */
	setpriority(PRIO_PROCESS, 0, -20);
	for (int64_t number = 0; number < count; number++) {
		sleep_until(begun + number * NS_PER_S / rate);
		well += reap(WNOHANG);
		pid_t child = fork();
		if (child < 0)
			return 1;
		if (child)
			continue;
		setpriority(PRIO_PROCESS, 0, 0);
		char exec_ns[24], *all[MOST_WORDS + 3];
		snprintf(exec_ns, sizeof(exec_ns), "%lld", (long long)now_ns(CLOCK_MONOTONIC));
		memcpy(all, matched, words * sizeof(*all));
		memcpy(all + words, (char *[]){ exec_ns, limit_ms, NULL }, 3 * sizeof(*all));
		if (number % one_in)
			execl(other, other, "leave", NULL);
		else
			execv(matched[0], all);
		_exit(1);
	}
	int64_t took_ns = now_ns(CLOCK_MONOTONIC) - begun;

	well += reap(0);
	printf("started %lld %lld\n", (long long)well, (long long)took_ns);
	return 0;
}

static int await(int64_t exec_ns, int64_t limit_ms)
{
	prctl(PR_SET_TIMERSLACK, 1);
	while (!has_priority()) {
		int64_t passed_ns = now_ns(CLOCK_MONOTONIC) - exec_ns;

		if (passed_ns > limit_ms * 1000000)
			return puts("missed"), 0;
		sleep_until(exec_ns + passed_ns + NAP_NS);
	}
	printf("raised %lld\n", (long long)(now_ns(CLOCK_MONOTONIC) - exec_ns));
	return 0;
}

static int reach(const char *address, int port, int64_t exec_ns, int64_t limit_ms)
{
	struct sockaddr_in far = { .sin_family = AF_INET, .sin_port = htons(port) };
	int connection = socket(AF_INET, SOCK_STREAM, 0);
	int64_t raised_ns = 0, passed_ns;

	if (inet_pton(AF_INET, address, &far.sin_addr) != 1 || connection < 0 ||
	    connect(connection, (struct sockaddr *)&far, sizeof(far)))
		return 1;
	while ((passed_ns = now_ns(CLOCK_MONOTONIC) - exec_ns) <= limit_ms * 1000000) {
		char control[16] = "", some[100] = { 0 };
		socklen_t length = sizeof(control);

		/* Only a socket that sends is given a congestion control. */
		if (send(connection, some, sizeof(some), MSG_NOSIGNAL) < 0)
			return 1;
		getsockopt(connection, IPPROTO_TCP, TCP_CONGESTION, control, &length);
		if (!raised_ns && !strncmp(control, "gw_lbe_", 7))
			raised_ns = passed_ns;
		sleep_until(exec_ns + passed_ns + NS_PER_S / 100);
	}
	if (raised_ns)
		printf("raised %lld\n", (long long)raised_ns);
	else
		puts("missed");
	return 0;
}

/* What one thread saw of its policy. */
struct watch {
	int cpu;
	int64_t begun_ns, until_ns, burst_ns, period_ns;
	int64_t raised_ns, demoted_ns, looked_ns;
	/* In slots of time that end at until_ns. */
	int64_t computed_ns[SLOTS];
	int had_priority;
};

static void look(struct watch *watch)
{
	int64_t cpu_ns = now_ns(CLOCK_THREAD_CPUTIME_ID), now = now_ns(CLOCK_MONOTONIC);
	int64_t slot = (watch->until_ns - now) / SLOT_NS;
	int has = has_priority();

	if (watch->had_priority)
		watch->computed_ns[slot < 0 ? 0 : slot < SLOTS ? slot : SLOTS - 1] += cpu_ns - watch->looked_ns;
	if (has && !watch->raised_ns)
		watch->raised_ns = now;
	if (!has && watch->had_priority && !watch->demoted_ns)
		watch->demoted_ns = now;
	watch->had_priority = has;
	watch->looked_ns = cpu_ns;
}

static void *spin_one(void *argument)
{
	struct watch *watch = argument;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(watch->cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	watch->begun_ns = now_ns(CLOCK_MONOTONIC);
	for (int64_t due_ns = watch->begun_ns; due_ns < watch->until_ns; due_ns += watch->period_ns) {
		int64_t until_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + watch->burst_ns;

		while (now_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns && now_ns(CLOCK_MONOTONIC) < watch->until_ns) {
			look(watch);
			compute();
		}
		sleep_until(due_ns + watch->period_ns);
	}
	look(watch);
	return NULL;
}

static double computed_ms(const struct watch *watch)
{
	int64_t computed_ns = 0;

	for (int slot = 0; slot < SLOTS; slot++)
		computed_ns += watch->computed_ns[slot];
	return computed_ns / NS_PER_MS;
}

static double ms_between(int64_t from_ns, int64_t to_ns)
{
	return from_ns && to_ns ? (to_ns - from_ns) / NS_PER_MS : -1;
}

static int spin(int64_t seconds, int64_t burst_ns, int64_t period_ns, int count, char **cpus)
{
	static struct watch watches[MOST_THREADS];
	pthread_t threads[MOST_THREADS];
	int64_t until_ns = now_ns(CLOCK_MONOTONIC) + seconds * NS_PER_S;

	if (count > MOST_THREADS)
		return 2;
	limit(seconds, count);
	for (int number = 0; number < count; number++) {
		watches[number] = (struct watch){ .cpu = atoi(cpus[number]), .until_ns = until_ns,
						  .burst_ns = burst_ns, .period_ns = period_ns };
		if (pthread_create(&threads[number], NULL, spin_one, &watches[number]))
			return 1;
	}
	for (int number = 0; number < count; number++) {
		struct watch *watch = &watches[number];

		pthread_join(threads[number], NULL);
		printf("spun %d %.3f %.3f %.3f\n", watch->cpu, ms_between(watch->begun_ns, watch->raised_ns),
		       ms_between(watch->raised_ns, watch->demoted_ns), computed_ms(watch));
	}
	return 0;
}

/* Gives each child half of the remaining count, and so doubles the processes each time. */
static int bomb(char *self, int64_t count, int64_t until_ns)
{
	struct watch watch = { .until_ns = until_ns };
	char line[SLOTS * 12];
	int length = 0;

	limit((until_ns - now_ns(CLOCK_MONOTONIC)) / NS_PER_S + 1, 1);
	for (count--; count > 0; count /= 2) {
		pid_t child = fork();

		if (child == 0) {
			char its[24], until[24];

			snprintf(its, sizeof(its), "%lld", (long long)(count + 1) / 2);
			snprintf(until, sizeof(until), "%lld", (long long)until_ns);
			execl(self, self, "bomb", its, until, NULL);
			_exit(1);
		}
		if (child < 0)
			break;
	}
	while (now_ns(CLOCK_MONOTONIC) < until_ns) {
		look(&watch);
		compute();
	}
	look(&watch);
	for (int slot = 0; slot < SLOTS; slot++)
		length += sprintf(line + length, " %.2f", watch.computed_ns[slot] / NS_PER_MS);
	/* In one write, since others write too. */
	printf("bombed%s\n", line);
	fflush(stdout);
	reap(0);
	return 0;
}

int main(int count, char **words)
{
	const char *task = count > 1 ? words[1] : "";

	if (!strcmp(task, "start") && count > 7 && count - 7 <= MOST_WORDS)
		return start(atoll(words[2]), atoll(words[3]), atoll(words[4]), words[5], words[6], count - 7, words + 7);
	if (!strcmp(task, "await") && count == 4)
		return await(atoll(words[2]), atoll(words[3]));
	if (!strcmp(task, "reach") && count == 6)
		return reach(words[2], atoi(words[3]), atoll(words[4]), atoll(words[5]));
	if (!strcmp(task, "leave"))
		return has_priority() ? puts("wrong"), 0 : 0;
	if (!strcmp(task, "spin") && count > 3)
		return spin(atoll(words[2]), INT64_MAX / 4, NS_PER_S, count - 3, words + 3);
	if (!strcmp(task, "bomb") && count == 4)
		return bomb(words[0], atoll(words[2]), atoll(words[3]));
	if (!strcmp(task, "nibble") && count == 6)
		return spin(atoll(words[4]), atoll(words[2]) * 1000, atoll(words[3]) * 1000, 1, words + 5);
	return 2;
}
