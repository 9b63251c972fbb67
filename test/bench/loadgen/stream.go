package loadgen

import (
	"cmp"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A Pace describes how fast a host streams.
type Pace struct {
	Burst  int           // number of actions that are sent at once on each channel; default 1
	Every  time.Duration // time between bursts; 0: the next burst follows when Window permits
	Window int           // most actions of a channel that may be on their way to clients; 0: no limit
}

// StreamArgs describes a stream and the clients that receive it.
type StreamArgs struct {
	Channels []string
	Size     int           // length of an action in bytes
	For      time.Duration // duration of the stream
	Pace     Pace

	// The stream goes to the clients of the channels. With NATS, it goes to a NATS server,
	// to subjects with the channels' names. With Feed, it goes to a Writer.
	NATS, Feed string

	Slot    int // counter of the clients
	Readers int // number of clients that receive each action of a channel

	MayLose  bool          // a loss is not an error
	Patience time.Duration // a frame counts as lost when nothing arrives for this time; default 20 s
}

// StreamReply has the result of Stream.
type StreamReply struct {
	Actions   int           // number of actions sent on each channel
	Delivered int           // number of frames that clients have received
	Lost      int           // number of frames that clients have not received
	Took      time.Duration // time until everything was delivered
}

const defaultPatience = 20 * time.Second

// Stream streams actions, and returns when clients have received all of them.
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
		if behind := time.Since(last); behind > lookLess { // looks less often, because the host's processor time is a figure
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

// lookLess is the time after which the host looks less often whether everything has
// arrived.
const lookLess = 20 * time.Millisecond

// speak streams for the time args.For. It returns the number of actions sent on each
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

// sleep pauses more exactly than time.Sleep, which may take a millisecond longer.
func sleep(d time.Duration) {
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&t, nil)
	}
}

// A watch counts the frames that clients have received since newWatch.
type watch struct {
	counter  *counter
	readers  int
	patience time.Duration
	base     int64
	last     int64     // value of the counter when it was last read
	moved    time.Time // time since which the counter has this value
}

func newWatch(c *counter, readers int) *watch {
	w := &watch{counter: c, readers: readers, base: c.Load(), moved: time.Now()}
	w.last = w.base
	return w
}

func (w *watch) total() int { return int(w.counter.Load() - w.base) }

// each returns how many frames each reader has received, on average.
func (w *watch) each() int { return w.total() / w.readers }

// wait pauses for waitStep. It returns an error if nothing has arrived for the time
// patience.
func (w *watch) wait(sent int) error {
	sleep(waitStep)
	if now := w.counter.Load(); now != w.last {
		w.last, w.moved = now, time.Now()
	} else if time.Since(w.moved) > w.patience {
		return fmt.Errorf("lost: clients got %d frames of %d, and nothing for %v", w.total(), sent*w.readers, w.patience)
	}
	return nil
}

// target returns a function that sends the next burst of actions on all channels.
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
		return fmt.Errorf("the actions on %s have %d bytes; want the same size for all uses", t.channel, t.format.size)
	}
	var err error
	t.format, err = NewFormat(t.channel, size)
	return err
}

// compose makes the next actions of a topic, and calls use with each.
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

// toClients sends the next actions of a topic to all of its clients. It makes the
// frames only once.
func (h *Host) toClients(t *topic, burst int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var frames []byte
	h.compose(t, burst, func(action []byte) { frames = appendFrame(frames, opText, action) })
	for c := range t.conns {
		c.mu.Lock()
		_, err := c.Write(frames)
		c.mu.Unlock()
		if err != nil { // the goroutine that reads the connection notices the error, too
			delete(t.conns, c)
		}
	}
	return nil
}

// Said returns how many actions the host has sent on a channel.
func (h *Host) Said(channel string, n *int64) error {
	t := h.topic(channel)
	t.mu.Lock()
	defer t.mu.Unlock()
	*n = int64(len(t.said))
	return nil
}
