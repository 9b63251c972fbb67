package loadgen

import (
	"cmp"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A Pace is the speed of a host's stream.
type Pace struct {
	Burst  int           // actions that are sent at once on each channel; default 1
	Every  time.Duration // between bursts; 0: as soon as Window permits
	Window int           // actions of a channel that may be on their way to clients; 0: any number
}

// StreamArgs describe a host's stream and its receivers.
type StreamArgs struct {
	Channels []string
	Size     int           // bytes of an action
	For      time.Duration // how long
	Pace     Pace

	// The stream goes to the channels' clients, or to a NATS server's subjects with
	// the channels' names, or to a Writer's feed.
	NATS, Feed string

	Slot    int // of the counter of the clients
	Readers int // how many get each action, at each channel

	MayLose  bool          // a loss is no error
	Patience time.Duration // how long nothing may arrive before it counts as lost; default 20 s
}

// StreamReply is the result of Stream.
type StreamReply struct {
	Actions   int           // sent on each channel
	Delivered int           // frames
	Lost      int           // frames that did not come
	Took      time.Duration // until all was delivered
}

const defaultPatience = 20 * time.Second

// Stream speaks, and returns when clients have got all of it.
func (h *Host) Stream(args StreamArgs, reply *StreamReply) error {
	args.Pace.Burst = max(1, args.Pace.Burst)
	say, err := h.target(&args)
	if err != nil {
		return err
	}
	watch := newWatch(&h.counters.slots[args.Slot], args.Readers*len(args.Channels))
	watch.patience = cmp.Or(args.Patience, defaultPatience)
	began := time.Now()
	sent, err := speak(&args, watch, say)
	for last := time.Now(); watch.each() < sent && err == nil; {
		err = watch.wait(sent)
		if behind := time.Since(last); behind > lookLess { // its own processor time is a figure
			sleep(min(behind/10, 10*time.Millisecond))
		}
	}
	got, want := watch.total(), sent*watch.readers
	*reply = StreamReply{Actions: sent, Delivered: got, Lost: want - got, Took: time.Since(began)}
	switch {
	case args.MayLose && got <= want:
		return nil
	case err == nil && got != want:
		return fmt.Errorf("clients got %d frames; want %d", got, want)
	}
	return err
}

// lookLess is the time after which the host checks less often for complete delivery.
const lookLess = 20 * time.Millisecond

// speak streams for the given time, and returns the number of actions sent on each
// channel.
func speak(args *StreamArgs, watch *watch, say func(burst int) error) (sent int, err error) {
	began := time.Now()
	next := began
	for sent == 0 || time.Since(began) < args.For {
		for args.Pace.Window > 0 && sent+args.Pace.Burst > watch.each()+args.Pace.Window {
			if err := watch.wait(sent); err != nil {
				return sent, err
			}
		}
		if err := say(args.Pace.Burst); err != nil {
			return sent, err
		}
		sent += args.Pace.Burst
		if args.Pace.Every > 0 {
			next = next.Add(args.Pace.Every)
			sleep(time.Until(next))
		}
	}
	return sent, nil
}

// sleep is more exact than time.Sleep, which may take a millisecond more.
func sleep(d time.Duration) {
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil)
	}
}

// A watch counts the frames that clients received since it was made.
type watch struct {
	counter  *counter
	readers  int
	patience time.Duration
	base     int64
	last     int64     // the last value seen
	moved    time.Time // since then
}

func newWatch(c *counter, readers int) *watch {
	w := &watch{counter: c, readers: readers, base: c.Load(), moved: time.Now()}
	w.last = w.base
	return w
}

func (w *watch) total() int { return int(w.counter.Load() - w.base) }

// each returns how many frames each reader has got, on average.
func (w *watch) each() int { return w.total() / w.readers }

// wait waits a little. That nothing arrives for long is an error.
func (w *watch) wait(sent int) error {
	sleep(waitStep)
	if now := w.counter.Load(); now != w.last {
		w.last, w.moved = now, time.Now()
	} else if time.Since(w.moved) > w.patience {
		return fmt.Errorf("lost: clients got %d frames of %d, and nothing for %v", w.total(), sent*w.readers, w.patience)
	}
	return nil
}

// target returns a function that sends the next actions on all channels.
func (h *Host) target(args *StreamArgs) (say func(burst int) error, err error) {
	topics := make([]*topic, len(args.Channels))
	for i, channel := range args.Channels {
		topics[i] = h.topic(channel)
		if err := topics[i].use(args.Size); err != nil {
			return nil, err
		}
	}
	each := (*Host).toClients
	switch {
	case args.NATS != "":
		c, err := h.natsConn(args.NATS)
		if err != nil {
			return nil, err
		}
		each = func(h *Host, t *topic, burst int) error {
			h.compose(t, burst, func(action []byte) { err = c.Publish(t.channel, action) })
			if err != nil {
				return err
			}
			return c.Flush()
		}
	case args.Feed != "":
		each = func(h *Host, t *topic, burst int) error {
			c, err := h.feed(args.Feed, t.channel)
			if err != nil {
				return err
			}
			var b []byte
			h.compose(t, burst, func(action []byte) { b = appendFed(b, action) })
			_, err = c.Write(b)
			return err
		}
	}
	return func(burst int) error {
		for _, t := range topics {
			if err := each(h, t, burst); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (t *topic) use(size int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.format != nil && t.format.size == size {
		return nil
	}
	if t.format != nil {
		return fmt.Errorf("actions on %s have %d bytes already", t.channel, t.format.size)
	}
	var err error
	t.format, err = NewFormat(t.channel, size)
	return err
}

// compose makes the next actions of a topic.
func (h *Host) compose(t *topic, burst int, use func(action []byte)) {
	h.mu.Lock()
	first := h.seq + 1
	h.seq += int64(burst)
	h.mu.Unlock()
	at := time.Now().UnixNano()
	buf := make([]byte, 0, t.format.size)
	for i := range int64(burst) {
		t.said = append(t.said, saying{first + i, at})
		use(t.format.Append(buf, first+i, int64(len(t.said)), at))
	}
}

// toClients sends a topic's next actions to all its clients. The frames are made once.
func (h *Host) toClients(t *topic, burst int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var frames []byte
	h.compose(t, burst, func(action []byte) { frames = appendFrame(frames, opText, action) })
	for c := range t.conns {
		c.mu.Lock()
		_, err := c.Write(frames)
		c.mu.Unlock()
		if err != nil { // its reader sees it too
			delete(t.conns, c)
		}
	}
	return nil
}

// Said returns how many actions were sent on a channel.
func (h *Host) Said(channel string, n *int64) error {
	t := h.topic(channel)
	t.mu.Lock()
	defer t.mu.Unlock()
	*n = int64(len(t.said))
	return nil
}
