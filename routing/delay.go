package routing

import (
	"time"

	"ahprelay/internal/ablation"
)

// A delay measures how long items stay in a link's queues. It measures one sampled
// item at a time, so that items need no timestamps. Its cost is below the variance of
// `make bench ARGS=ablate`. The AgentEnd's mutex guards it.
type delay struct {
	report  func(time.Duration) // receives each measurement; nil: do not measure
	sampler Sampler

	at     time.Time // when the measured item was queued; zero: no measurement is in progress
	of     *stream   // the item's stream
	before int       // items to send on the stream until the measured item has left
}

// pushed may start a measurement of the item just queued on a stream.
func (d *delay) pushed(s *stream) {
	if d.report == nil || d.of != nil || s.items.len() == 0 {
		return
	}
	if d.at = d.sampler.Now(); !d.at.IsZero() {
		d.of, d.before = s, s.items.len()
	}
}

// popped records that a stream's first item is sent.
func (d *delay) popped(s *stream) {
	if d.of != s {
		return
	}
	if d.before--; d.before == 0 {
		d.measured(d.at)
		d.of = nil
	}
}

// dropped cancels the measurement if its stream was emptied.
func (d *delay) dropped(s *stream) {
	if d.of == s {
		d.of = nil
	}
}

// measured reports the delay of an item that was queued at since and is sent now.
func (d *delay) measured(since time.Time) {
	if d.report != nil && !ablation.Delays {
		d.report(time.Since(since))
	}
}

// A Sampler selects every sampleOf-th event for measurement. It is not safe for
// concurrent use.
type Sampler struct{ n uint32 }

// sampleOf is the number of events per measurement.
const sampleOf = 8

// Now returns the current time if this event is selected, else zero.
func (s *Sampler) Now() (at time.Time) {
	if s.n++; s.n%sampleOf == 1 && !ablation.Delays {
		at = time.Now()
	}
	return at
}
