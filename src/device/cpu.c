#include "device/device.h"

#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The team. A job is n items cut into parts. `ticket` holds the job's number and how many of its parts nobody has
 * taken yet; a thread takes a part by counting the ticket down with compare-and-swap. Job fields are read before the
 * swap: they change only while no part is left, and then the job's number changes, so a swap that succeeds proves
 * that what was read belongs to this job. A worker that sleeps through a job is therefore not waited for; the caller
 * waits only for the parts that were taken. */
enum { SPIN_ROUNDS = 4000, SPIN_ROUNDS_CROWDED = 50, PARTS_PER_THREAD = 4 };

typedef struct worker {
    gm_device *dev;
    pthread_t thread;
    int id;
} worker;

struct gm_device {
    gm_isa isa;
    int n_threads, n_cpus;
    worker *workers; /* [n_threads]; 0 is the caller and has no thread */
    int n_started;

    pthread_mutex_t call;  /* one job at a time */
    pthread_mutex_t sleep; /* with `wake` and n_asleep */
    pthread_cond_t wake;
    atomic_int n_asleep;
    atomic_bool stop;

    _Alignas(64) _Atomic uint64_t ticket; /* job number << 32 | parts left */
    _Alignas(64) atomic_int n_done;       /* parts finished */
    _Alignas(64) _Atomic(gm_range_fn *) fn;
    _Atomic(void *) ctx;
    _Atomic int64_t n, grain;
    atomic_int n_parts;
};

/* Which worker this thread is while it runs a part; -1 outside: nested calls run inline under the same number. */
static _Thread_local int running_as = -1;

static void pause_briefly(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/* Parts begin at multiples of the grain; the last one takes the remainder. */
static int64_t part_begin(int64_t n, int64_t grain, int64_t n_parts, int64_t part)
{
    int64_t units = n / grain;
    return part == n_parts ? n : units * part / n_parts * grain;
}

/* Take and run one part of whatever job is open. False when there is none. */
static bool run_part(gm_device *d, int id)
{
    uint64_t t = atomic_load_explicit(&d->ticket, memory_order_acquire);
    for (;;) {
        uint32_t left = (uint32_t)t;
        if (left == 0) return false;
        gm_range_fn *fn = atomic_load_explicit(&d->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&d->ctx, memory_order_relaxed);
        int64_t n = atomic_load_explicit(&d->n, memory_order_relaxed);
        int64_t grain = atomic_load_explicit(&d->grain, memory_order_relaxed);
        int n_parts = atomic_load_explicit(&d->n_parts, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&d->ticket, &t, t - 1, memory_order_acq_rel, memory_order_acquire))
            continue;
        int64_t part = n_parts - (int64_t)left;
        running_as = id;
        fn(ctx, part_begin(n, grain, n_parts, part), part_begin(n, grain, n_parts, part + 1), id);
        running_as = -1;
        atomic_fetch_add_explicit(&d->n_done, 1, memory_order_acq_rel);
        return true;
    }
}

static bool work_or_stop(gm_device *d)
{
    return (uint32_t)atomic_load(&d->ticket) != 0 || atomic_load(&d->stop);
}

/* Between two ops of a step lie a few microseconds: spin that long, then sleep. */
static void wait_for_work(gm_device *d)
{
    bool crowded = d->n_threads > d->n_cpus;
    int rounds = crowded ? SPIN_ROUNDS_CROWDED : SPIN_ROUNDS;
    for (int i = 0; i < rounds; i++) {
        if ((uint32_t)atomic_load_explicit(&d->ticket, memory_order_relaxed) != 0) return;
        if (crowded || i % 256 == 255) sched_yield();
        else pause_briefly();
    }
    pthread_mutex_lock(&d->sleep);
    atomic_fetch_add(&d->n_asleep, 1);
    while (!work_or_stop(d)) pthread_cond_wait(&d->wake, &d->sleep);
    atomic_fetch_sub(&d->n_asleep, 1);
    pthread_mutex_unlock(&d->sleep);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    gm_device *d = w->dev;
    while (!atomic_load_explicit(&d->stop, memory_order_acquire)) {
        if (!run_part(d, w->id)) wait_for_work(d);
    }
    return NULL;
}

void gm_device_parallel(gm_device *d, int64_t n, int64_t grain, gm_range_fn *fn, void *ctx)
{
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (running_as >= 0) {
        fn(ctx, 0, n, running_as);
        return;
    }
    pthread_mutex_lock(&d->call);
    int64_t n_parts = n / grain;
    if (n_parts > (int64_t)d->n_threads * PARTS_PER_THREAD) n_parts = (int64_t)d->n_threads * PARTS_PER_THREAD;
    if (d->n_threads == 1 || n_parts <= 1) {
        running_as = 0;
        fn(ctx, 0, n, 0);
        running_as = -1;
        pthread_mutex_unlock(&d->call);
        return;
    }

    atomic_store_explicit(&d->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&d->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&d->n, n, memory_order_relaxed);
    atomic_store_explicit(&d->grain, grain, memory_order_relaxed);
    atomic_store_explicit(&d->n_parts, (int)n_parts, memory_order_relaxed);
    atomic_store_explicit(&d->n_done, 0, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&d->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&d->ticket, job << 32 | (uint64_t)n_parts);
    if (atomic_load(&d->n_asleep) > 0) {
        pthread_mutex_lock(&d->sleep);
        pthread_cond_broadcast(&d->wake);
        pthread_mutex_unlock(&d->sleep);
    }

    while (run_part(d, 0)) {
    }
    bool crowded = d->n_threads > d->n_cpus;
    for (int i = 0; atomic_load_explicit(&d->n_done, memory_order_acquire) < (int)n_parts; i++) {
        if (crowded || i > SPIN_ROUNDS) sched_yield();
        else pause_briefly();
    }
    pthread_mutex_unlock(&d->call);
}

static int cpus_allowed(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

gm_status gm_device_open_cpu(gm_device **out, gm_isa isa, int n_threads, gm_error *err)
{
    if (isa < GM_ISA_REF || isa > GM_ISA_AVX512) return gm_fail(err, GM_EARG, "instruction set %d is none", (int)isa);
    if (isa > gm_isa_detect())
        return gm_fail(err, GM_ENOTSUP, "instruction set \"%s\": this machine has %s at most", gm_isa_name(isa),
                       gm_isa_name(gm_isa_detect()));
    if (n_threads < 0 || n_threads > 4096)
        return gm_fail(err, GM_EARG, "%d threads: must be 0 to 4096", n_threads);

    size_t size = (sizeof(gm_device) + 63) / 64 * 64;
    gm_device *d = gm_pages_alloc(size); /* aligned as its members ask */
    if (!d) return gm_fail(err, GM_ENOMEM, "no memory for the device");
    d->isa = isa;
    d->n_cpus = cpus_allowed();
    d->n_threads = n_threads ? n_threads : d->n_cpus;
    d->workers = gm_new_array(worker, d->n_threads);
    pthread_mutex_init(&d->call, NULL);
    pthread_mutex_init(&d->sleep, NULL);
    pthread_cond_init(&d->wake, NULL);
    for (int i = 1; i < d->n_threads; i++) {
        d->workers[i] = (worker){.dev = d, .id = i};
        if (pthread_create(&d->workers[i].thread, NULL, worker_main, &d->workers[i]) != 0) {
            gm_device_close(d);
            return gm_fail(err, GM_EDEVICE, "could not start thread %d of %d", i, n_threads);
        }
        d->n_started = i;
    }
    *out = d;
    return GM_OK;
}

void gm_device_close(gm_device *d)
{
    if (!d) return;
    pthread_mutex_lock(&d->sleep);
    atomic_store(&d->stop, true);
    pthread_cond_broadcast(&d->wake);
    pthread_mutex_unlock(&d->sleep);
    for (int i = 1; i <= d->n_started; i++) pthread_join(d->workers[i].thread, NULL);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->sleep);
    pthread_mutex_destroy(&d->call);
    gm_free(d->workers);
    gm_pages_free(d, (sizeof(gm_device) + 63) / 64 * 64);
}

gm_device_kind gm_device_get_kind(const gm_device *d)
{
    (void)d;
    return GM_DEVICE_CPU;
}

gm_isa gm_device_isa(const gm_device *d)
{
    return d->isa;
}

int gm_device_threads(const gm_device *d)
{
    return d->n_threads;
}

void *gm_device_alloc(gm_device *d, size_t size)
{
    (void)d;
    return gm_pages_alloc(size);
}

void gm_device_free(gm_device *d, void *p, size_t size)
{
    (void)d;
    gm_pages_free(p, size);
}
