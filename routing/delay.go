package routing

import (
	"time"

	"ahprelay/internal/ablation"
)

// A delay measures the time from an item's queueing to its departure on a link, for
// one sampled item at a time, so that items need no timestamps. Its cost is below the
// variance of `make bench ARGS=ablate`. Its link's mutex guards it.
type delay struct {
	report  func(time.Duration) // receives each measurement; nil: none wanted
	sampler Sampler

	at     time.Time // when the measured item was queued; zero: no item is measured
	of     *stream   // the item's stream
	before int       // items of the stream that leave up to and including it
}

// pushed considers the last item of a stream for measurement.
func (d *delay) pushed(s *stream) {
	if d.report == nil || d.of != nil || s.items.len() == 0 {
		return
	}
	if d.at = d.sampler.Now(); !d.at.IsZero() {
		d.of, d.before = s, s.items.len()
	}
}

// popped records that the first item of a stream leaves.
func (d *delay) popped(s *stream) {
	if d.of != s {
		return
	}
	if d.before--; d.before == 0 {
		d.measured(d.at)
		d.of = nil
	}
}

// dropped records that a stream was emptied.
func (d *delay) dropped(s *stream) {
	if d.of == s {
		d.of = nil
	}
}

// measured reports the delay of an item that leaves now.
func (d *delay) measured(since time.Time) {
	if d.report != nil && !ablation.Delays {
		d.report(time.Since(since))
	}
}

// A Sampler selects one of every sampleOf events for measurement. Its owner guards it.
type Sampler struct{ n uint32 }

// sampleOf is the number of events for each measurement.
const sampleOf = 8

// Now returns the current time if this event is selected, else zero.
func (s *Sampler) Now() (at time.Time) {
	if s.n++; s.n%sampleOf == 1 && !ablation.Delays {
		at = time.Now()
	}
	return at
}
