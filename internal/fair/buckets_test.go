package fair_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/internal/fair"
)

// TestBucketsLimitEachKey takes all tokens of a key. This key must wait for the next token; other
// keys need not wait.
func TestBucketsLimitEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fair.NewBuckets(20*time.Millisecond, 3)
		for range 3 {
			if !b.Allow("busy") {
				t.Fatal("Allow = false within the burst of 3; want true")
			}
		}
		if wait := b.Take("busy"); wait != 20*time.Millisecond || b.Wait("busy") != wait {
			t.Errorf("a key without tokens waits %v and %v; want 20ms", wait, b.Wait("busy"))
		}
		if !b.Allow("other") || b.Wait("new") != 0 {
			t.Error("a full bucket for a different key is refused; want true, and no wait")
		}
		time.Sleep(20 * time.Millisecond)
		if !b.Allow("busy") || b.Allow("busy") {
			t.Error("after one interval, Allow must be true once")
		}
	})
}

// TestBucketsForgetKeys uses more and more keys. Their number must stay bounded. A key without
// tokens must be remembered while there are idle keys to forget in its place.
func TestBucketsForgetKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fair.NewBuckets(time.Hour, 1)
		for i := range fair.MaxBuckets / 2 {
			b.Allow(strconv.Itoa(i))
		}
		time.Sleep(time.Hour)
		b.Allow("busy")
		for i := range fair.MaxBuckets * 3 / 4 {
			b.Allow("x" + strconv.Itoa(i))
		}
		if b.Known() > fair.MaxBuckets || b.Allow("busy") {
			t.Errorf("%d keys are remembered; want at most %d, and the busy one", b.Known(), fair.MaxBuckets)
		}
		for i := range fair.MaxBuckets {
			b.Allow("y" + strconv.Itoa(i))
		}
		if b.Known() > fair.MaxBuckets {
			t.Errorf("%d busy keys are remembered; want at most %d", b.Known(), fair.MaxBuckets)
		}
	})
}
