// Threads that share one call: a single text has too few rows to divide, so its matrices are divided instead.
//
// A job is a number of independent parts. Any free thread takes the next part; a helper thread that is not scheduled
// delays nobody. The bits of a part do not depend on the thread.
#pragma once
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "amx.h"

#if defined(__x86_64__)
static inline void rest() { _mm_pause(); }
#else
static inline void rest() {}
#endif

class Team {
  public:
    explicit Team(int threads) {
        for (int i = 1; i < threads; i++) {
            try {
                helpers.emplace_back([this] { help(); });
            } catch (const std::system_error &) {
                break;  // no more threads available: continue with those that were started
            }
        }
    }

    ~Team() {
        done = true;
        for (auto &helper : helpers) helper.join();
    }

    template <class Work>
    void run(long parts, const Work &work) {
        if (helpers.empty()) {
            for (long part = 0; part < parts; part++) work(part);
            return;
        }
        // Between jobs `open` is false and no helper is inside, so the job may be written.
        call = [](const void *w, long part) { (*(const Work *)w)(part); };
        what = &work;
        count = parts;
        next = 0;
        open = true;
        take();
        open = false;
        while (inside) rest();  // parts that helpers have not finished
    }

  private:
    void take() {
        for (long part; (part = next++) < count;) call(what, part);
    }

    void help() {
        TileScope tiles_of_this_thread;
        for (int idle = 0; !done;) {
            if (open && next < count) {
                inside++;
                if (open) take();  // checked again: the job may have ended before `inside` was raised
                inside--;
                idle = 0;
            } else if (++idle < 2000) {
                rest();
            } else {
                std::this_thread::yield();
            }
        }
    }

    std::vector<std::thread> helpers;
    std::atomic<bool> open{false}, done{false};
    std::atomic<int> inside{0};
    std::atomic<long> next{0}, count{0};
    void (*call)(const void *, long) = nullptr;
    const void *what = nullptr;
};
