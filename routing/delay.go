package routing

import (
	"time"

	"ahprelay/internal/ablation"
)

// A delay measures how long what is queued on a link takes until it leaves: one
// item at a time, of a part of them. So an item need not know when it came. What that
// costs is less than what runs of `make bench ARGS=ablate` differ by. The mutex of its
// link guards it.
type delay struct {
	tell    func(time.Duration) // nil: nobody wants to know
	sampler Sampler

	at     time.Time // when the item came that is measured; zero: none is
	of     *stream   // that it is in
	before int       // how many items leave there first, and it
}

// pushed notes that an item is the last of a stream.
func (d *delay) pushed(s *stream) {
	if d.tell == nil || d.of != nil || s.items.len() == 0 {
		return
	}
	if d.at = d.sampler.Now(); !d.at.IsZero() {
		d.of, d.before = s, s.items.len()
	}
}

// popped notes that the first item of a stream leaves.
func (d *delay) popped(s *stream) {
	if d.of != s {
		return
	}
	if d.before--; d.before == 0 {
		d.told(d.at)
		d.of = nil
	}
}

// dropped notes that nothing of a stream leaves any more.
func (d *delay) dropped(s *stream) {
	if d.of == s {
		d.of = nil
	}
}

// told tells of something that leaves now.
func (d *delay) told(since time.Time) {
	if d.tell != nil && !ablation.Delays {
		d.tell(time.Since(since))
	}
}

// A Sampler says which of many events are to be measured: one of so many. Its
// owner guards it.
type Sampler struct{ n uint32 }

// one of sampleOf is measured.
const sampleOf = 8

// Now returns the time if this event is to be measured, else zero.
func (s *Sampler) Now() (at time.Time) {
	if s.n++; s.n%sampleOf == 1 && !ablation.Delays {
		at = time.Now()
	}
	return at
}
