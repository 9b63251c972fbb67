package fair

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// MaxBuckets bounds the keys of [Buckets].
const MaxBuckets = 16384

// Buckets is a set of rate limiters, one for each key. When there are too many keys, idle
// keys are forgotten first. It is safe for concurrent use.
type Buckets struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex // guards of
	of map[string]*rate.Limiter
}

// NewBuckets returns Buckets which allow one event per interval, and bursts of the
// given size.
func NewBuckets(every time.Duration, burst int) *Buckets {
	return &Buckets{rate: rate.Every(every), burst: burst, of: map[string]*rate.Limiter{}}
}

// Take takes a token from a key's bucket, or returns the time until it has a token.
func (b *Buckets) Take(whose string) (wait time.Duration) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of[whose]
	if bucket == nil {
		b.forgetLocked(now)
		bucket = rate.NewLimiter(b.rate, b.burst)
		b.of[whose] = bucket
	}
	r := bucket.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// Allow takes a token from a key's bucket, and reports whether it had one.
func (b *Buckets) Allow(whose string) bool { return b.Take(whose) == 0 }

// Wait returns the time until a key's bucket has a token, and takes none.
func (b *Buckets) Wait(whose string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.of[whose]
	if bucket == nil {
		return 0
	}
	lack := 1 - bucket.TokensAt(time.Now())
	return max(0, time.Duration(lack/float64(b.rate)*float64(time.Second)))
}

// forgetLocked removes idle keys if there are MaxBuckets. If that does not suffice, it
// removes arbitrary keys until half are left.
func (b *Buckets) forgetLocked(now time.Time) {
	if len(b.of) < MaxBuckets {
		return
	}
	maps.DeleteFunc(b.of, func(_ string, bucket *rate.Limiter) bool { return bucket.TokensAt(now) >= float64(bucket.Burst()) })
	for whose := range b.of {
		if len(b.of) <= MaxBuckets/2 {
			return
		}
		delete(b.of, whose)
	}
}
