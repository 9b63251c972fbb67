package coalesce_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"ahprelay/internal/coalesce"
	_ "ahprelay/test/fixedseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestEachIsCounted notes events at random times. For each kind, the counts in all reports must add
// up to the number of events, and there may be at most one report with a sum in each interval.
func TestEachIsCounted(t *testing.T) {
	const every = 10 * time.Second
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			table := coalesce.New(every)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go table.Run(ctx)
			var mu sync.Mutex // guards told and last
			noted, told, last := map[int]int{}, map[int]int{}, map[int]time.Time{}
			atOnce := rapid.IntRange(1, 3).Draw(rt, "at once")
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				key := rapid.IntRange(0, 3).Draw(rt, "kind")
				noted[key]++
				table.Note(key, atOnce, func(more int) {
					mu.Lock()
					defer mu.Unlock()
					told[key] += max(more, 1)
					if more > 0 && !last[key].IsZero() && time.Since(last[key]) < every {
						t.Errorf("two counts for one kind are reported %v apart; want them at least every apart", time.Since(last[key]))
					}
					if more > 0 {
						last[key] = time.Now()
					}
				})
				mu.Lock()
				if noted[key] <= atOnce && told[key] != noted[key] {
					t.Errorf("event %d of kind %d is not reported at once; want it reported", noted[key], key)
				}
				mu.Unlock()
				time.Sleep(time.Duration(rapid.IntRange(0, 4000).Draw(rt, "ms")) * time.Millisecond)
				synctest.Wait()
			}
			time.Sleep(every)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for key, n := range noted {
				if told[key] != n {
					t.Errorf("kind %d: of %d events, %d are reported an interval later; want all", key, n, told[key])
				}
			}
		})
	})
}

// TestSurplusKindsAreCounted notes events of more kinds than the table has room for. Each kind must
// be reported at once, and no event be lost.
func TestSurplusKindsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := coalesce.New(time.Hour)
		told := map[string]int{}
		const kinds = 3 * coalesce.Max
		for i := range kinds {
			key := fmt.Sprint(i)
			for range 3 {
				table.Note(key, 1, func(more int) { told[key] += max(more, 1) })
			}
		}
		if len(told) != kinds {
			t.Errorf("the first events of %d kinds are reported at once; want those of all %d", len(told), kinds)
		}
		early := 0
		for _, n := range told {
			if n == 3 {
				early++
			}
		}
		if want := kinds - coalesce.Max; early != want {
			t.Errorf("all events of %d kinds are reported before the interval ends; want that only for the %d kinds beyond the bound", early, want)
		}
		table.Flush()
		for key, n := range told {
			if n != 3 {
				t.Fatalf("kind %s: %d events reported; want 3", key, n)
			}
		}
	})
}
