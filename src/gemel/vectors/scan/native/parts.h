// Work in parts on several threads, which wait for the next call: starting one takes as long as comparing ten documents.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline void rest() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// Threads of the process that help with one call at a time. A helper that is not scheduled delays nobody: the caller does
// what nobody has begun.
class Helpers {
  public:
    // After a fork the threads of the parent are missing, and its locks may be held for ever: the child has its own.
    static Helpers &of_process() {
        static std::atomic<Helpers *> current{nullptr};
        Helpers *own = current;
        if (own && own->process == getpid()) return *own;
        Helpers *fresh = new Helpers;  // never deleted: its threads wait until the process ends
        if (current.compare_exchange_strong(own, fresh)) return *fresh;
        delete fresh;
        return *own;
    }

    // Calls work() on up to `threads` threads, this one included. False: they help another call, and nothing was done.
    template <class Work>
    bool run(int threads, const Work &work) {
        std::unique_lock<std::mutex> one_call(busy, std::try_to_lock);
        if (!one_call) return false;
        for (; started < threads - 1; started++) {
            try {
                std::thread([this] { help(); }).detach();
            } catch (const std::system_error &) {
                break;  // no more threads available: continue with those that were started
            }
        }
        // Between calls `open` is false and no helper is inside, so the work may be written.
        call = [](const void *w) { (*(const Work *)w)(); };
        what = &work;
        wanted = threads - 1;
        open = true;
        number++;
        if (asleep) {
            std::lock_guard<std::mutex> lock(sleep);
            wake.notify_all();
        }
        work();
        open = false;
        for (int spins = 0; inside; spins++) spins < SPINS ? rest() : std::this_thread::yield();
        return true;
    }

  private:
    static const int SPINS = 2000;  // some 50 microseconds: the next call often follows at once

    void help() {
        for (long seen = 0;;) {
            for (int spins = 0; number == seen && spins < SPINS; spins++) rest();
            if (number == seen) {
                std::unique_lock<std::mutex> lock(sleep);
                asleep++;
                wake.wait(lock, [&] { return number != seen; });
                asleep--;
            }
            seen = number;
            inside++;
            if (open && wanted-- > 0) call(what);  // `open` is read after `inside` was raised: the call cannot end before
            inside--;
        }
    }

    const pid_t process = getpid();
    std::mutex busy, sleep;
    std::condition_variable wake;
    int started = 0;
    std::atomic<long> number{0};  // of calls
    std::atomic<bool> open{false};
    std::atomic<int> inside{0}, asleep{0}, wanted{0};
    void (*call)(const void *) = nullptr;
    const void *what = nullptr;
};

// Calls work(begin, end) for all of `count`, `step` at a time, on several threads.
template <class Work>
static void in_parts(long count, long step, int threads, const Work &work) {
    std::atomic<long> next{0};
    auto take = [&] {
        for (long begin; (begin = next.fetch_add(step)) < count;) work(begin, std::min(begin + step, count));
    };
    threads = (int)std::min<long>(threads, (count + step - 1) / step);
    if (threads < 2) return take();
    if (Helpers::of_process().run(threads, take)) return;
    std::vector<std::thread> helpers;
    for (int i = 1; i < threads; i++) {
        try {
            helpers.emplace_back(take);
        } catch (const std::system_error &) {
            break;
        }
    }
    take();
    for (auto &helper : helpers) helper.join();
}
