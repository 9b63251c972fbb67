package resume_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/broker/resume"
)

// A site is a relay and a client that share a stream, on fake time.
type site struct {
	*network
	client, server *resume.Stream
	clientOver     <-chan struct{}
	end            func()
}

// newSite starts a site, with defaults for zero settings. The test must call end before its bubble
// ends.
func newSite(t *testing.T, cfg resume.RelayConfig, pool *resume.Pool) *site {
	t.Helper()
	if cfg.Window == 0 {
		cfg.Window = resume.DefaultWindow
	}
	if cfg.Time == 0 {
		cfg.Time = resume.DefaultTime
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 10
	}
	if pool == nil {
		pool = resume.NewPool(1<<30, 1<<30)
	}
	relay := resume.NewRelay(cfg)
	s := &site{network: newNetwork(relay, pool)}
	ctx, cancel := context.WithCancel(context.Background())
	s.wg.Go(func() { relay.Run(ctx) })
	var err error
	if s.client, s.clientOver, err = resume.Dial(ctx, s.dial); err != nil {
		t.Fatal(err)
	}
	conn, err := relay.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.server = conn.(*resume.Stream)
	s.end = func() {
		_ = s.client.Close()
		cancel()
		s.freeze(false)
		s.cut()
		<-s.clientOver
		s.wg.Wait()
	}
	return s
}

// A flow writes count numbered lines at one end, and checks them at the other.
type flow struct {
	from, to io.ReadWriter
	size     func() int
	pause    func() time.Duration
	count    int
}

// run writes and reads all lines. It returns an error if a line is missing, repeated or changed.
func (f *flow) run() error {
	var wg sync.WaitGroup
	var wrote error
	wg.Go(func() {
		for i := range f.count {
			if f.pause != nil {
				time.Sleep(f.pause())
			}
			if _, wrote = f.from.Write(line(i, f.size())); wrote != nil {
				return
			}
		}
	})
	var read error
	head := make([]byte, 16)
	for i := range f.count {
		if _, read = io.ReadFull(f.to, head); read != nil {
			break
		}
		var number, size int
		if _, read = fmt.Sscanf(string(head), "%7d %7d\n", &number, &size); read != nil || number != i {
			read = fmt.Errorf("line %d begins with %q: %w", i, head, errors.Join(read, errors.ErrUnsupported))
			break
		}
		rest := make([]byte, size)
		if _, read = io.ReadFull(f.to, rest); read != nil {
			break
		}
		if !bytes.Equal(append(bytes.Clone(head), rest...), line(number, size)) {
			read = fmt.Errorf("line %d is changed", i)
			break
		}
	}
	wg.Wait()
	return errors.Join(read, wrote)
}

func line(number, size int) []byte {
	b := make([]byte, 16+size)
	copy(b, fmt.Sprintf("%7d %7d\n", number, size))
	for i := range size {
		b[16+i] = byte(number*31 + i*7)
	}
	return b
}

// TestStreamLosesNothing breaks the network at random while both ends write. Every byte must arrive
// once and in order, and the stream stay open.
func TestStreamLosesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		faults := rapid.SliceOfN(rapid.SampledFrom([]string{"cut", "freeze", "down", "blink"}), 1, 6).Draw(rt, "faults")
		lengths := rapid.SliceOfN(rapid.IntRange(1, 500), len(faults), len(faults)).Draw(rt, "seconds")
		count := rapid.IntRange(1, 300).Draw(rt, "lines")
		large := rapid.SampledFrom([]int{10, 2_000, 12_000}).Draw(rt, "size") // 300 lines fit into the window
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, resume.RelayConfig{}, nil)
			defer s.end()
			r := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			size := func() int { return draw(large) }
			pause := func() time.Duration { return time.Duration(draw(5000)) * time.Millisecond }
			results := make(chan error, 2)
			go func() { results <- (&flow{s.server, s.client, size, pause, count}).run() }()
			go func() { results <- (&flow{s.client, s.server, size, pause, count}).run() }()
			for i, fault := range faults {
				time.Sleep(time.Duration(draw(20_000)) * time.Millisecond)
				length := time.Duration(lengths[i]) * time.Second
				switch fault {
				case "cut":
					s.cut()
				case "blink":
					for range 10 {
						s.cut()
						time.Sleep(time.Duration(draw(300)) * time.Millisecond)
					}
				case "freeze":
					s.freeze(true)
					time.Sleep(length)
					s.cut()
					s.freeze(false)
				case "down":
					s.setDown(true)
					s.cut()
					time.Sleep(length)
					s.setDown(false)
				}
			}
			for range 2 {
				if err := <-results; err != nil {
					rt.Errorf("faults %v, lasting %v s: %v; want all bytes to arrive", faults, lengths, err)
				}
			}
		})
	})
}

// TestAbsentClientMissesTheWindow writes to an absent client. Nearly a window must be accepted.
// More must end the stream with ErrMissed, and the client must learn ErrGone when it returns.
func TestAbsentClientMissesTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, resume.RelayConfig{Window: 1 << 20}, nil)
		defer s.end()
		s.setDown(true)
		s.cut()
		synctest.Wait()
		if !s.server.Away() || !s.client.Away() {
			t.Fatal("an end without a carrier is not away; want both ends away")
		}
		if _, err := s.server.Write(make([]byte, 960<<10)); err != nil {
			t.Fatalf("writing a window's bytes for an absent client: %v; want no error", err)
		}
		if _, err := s.server.Write(make([]byte, 1<<20)); !errors.Is(err, resume.ErrMissed) {
			t.Errorf("Write of more than the window for an absent client = %v; want ErrMissed", err)
		}
		if held := s.pool.Held(); held != 0 {
			t.Errorf("%d bytes are counted after the stream's end; want 0", held)
		}
		s.setDown(false)
		<-s.clientOver
		if err := s.client.Err(); !errors.Is(err, resume.ErrGone) {
			t.Errorf("the returning client's stream ends with %v; want ErrGone", err)
		}
	})
}

// TestPresentClientHoldsTheWriterBack writes to a client that is connected and reads nothing. Write
// must block at about the window, and continue when the client reads.
func TestPresentClientHoldsTheWriterBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, resume.RelayConfig{Window: 1 << 20}, nil)
		defer s.end()
		if err := s.server.SetWriteDeadline(time.Now().Add(3 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := s.server.Write(make([]byte, 4<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < 960<<10 || n > 2<<20 {
			t.Errorf("a Write with a deadline, for a client that does not read, wrote %d bytes, %v; want about the window, and ErrDeadlineExceeded", n, err)
		}
		if err := s.server.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.CopyN(io.Discard, s.client, int64(n)+1<<20) }()
		if _, err := s.server.Write(make([]byte, 1<<20)); err != nil {
			t.Errorf("Write after the client has read: %v; want no error", err)
		}
	})
}

// TestAbsenceIsBounded keeps a client away for 9 minutes, after which the stream must continue, and
// for 11 minutes, after which both ends must have ended.
func TestAbsenceIsBounded(t *testing.T) {
	for _, test := range []struct {
		away time.Duration
		ends bool
	}{{9 * time.Minute, false}, {11 * time.Minute, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, resume.RelayConfig{}, nil)
			defer s.end()
			s.setDown(true)
			s.cut()
			time.Sleep(test.away)
			s.setDown(false)
			time.Sleep(time.Minute)
			if ended := s.server.Err() != nil; ended != test.ends {
				t.Errorf("after %v without a carrier, the relay's end has ended: %v, %v; want %v", test.away, ended, s.server.Err(), test.ends)
			}
			if ended := s.client.Err() != nil; ended != test.ends {
				t.Errorf("after %v without a carrier, the client's end has ended: %v, %v; want %v", test.away, ended, s.client.Err(), test.ends)
			}
		})
	}
}

// TestPoolBoundsAbsentClients writes to two absent clients of the same person, beyond the person's
// bound in the pool. The second stream must end with ErrMissed, and the first stay open.
func TestPoolBoundsAbsentClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := resume.NewPool(1<<20, 10<<20)
		s := newSite(t, resume.RelayConfig{}, pool)
		defer s.end()
		second, over, err := resume.Dial(t.Context(), s.dial)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = second.Close(); <-over }()
		conn, err := s.relay.Accept()
		if err != nil {
			t.Fatal(err)
		}
		s.setDown(true)
		s.cut()
		synctest.Wait()
		time.Sleep(time.Minute)
		if _, err := s.server.Write(make([]byte, 900<<10)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(make([]byte, 900<<10)); !errors.Is(err, resume.ErrMissed) {
			t.Errorf("Write beyond the person's bound = %v; want ErrMissed", err)
		}
		if err := s.server.Err(); err != nil {
			t.Errorf("the person's first stream has ended: %v; want it open", err)
		}
		s.setDown(false)
	})
}

// TestRefusedStreamLearnsTheLimit opens more streams than one person may have. The client must learn
// the limit.
func TestRefusedStreamLearnsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, resume.RelayConfig{MaxStreams: 1}, nil)
		defer s.end()
		const want = "the limit of 1 streams for one person is reached"
		if _, _, err := resume.Dial(t.Context(), s.dial); !errors.Is(err, resume.ErrGone) || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial of a second stream = %v; want ErrGone, %q", err, want)
		}
	})
}

// TestSilentCarriersAreBounded opens many carriers on which a client says nothing. At most MaxStreams
// of a person may wait for the client's hello. The relay must end the others at once, and serve a
// different person. When the time for the hello has passed, the first person must be served again.
func TestSilentCarriersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, resume.RelayConfig{MaxStreams: 3}, nil)
		defer s.end()
		var ended atomic.Int32
		for range 10 {
			c := s.raw(t)
			s.wg.Go(func() {
				_, _ = c.Recv() // until the relay ends the carrier
				ended.Add(1)
			})
		}
		synctest.Wait()
		if n := ended.Load(); n != 7 {
			t.Errorf("%d of 10 silent carriers have ended; want all but 3", n)
		}
		for _, person := range []string{"bob", "ada"} {
			s.mu.Lock()
			s.person = person
			s.mu.Unlock()
			if err := s.opens(t); err != nil {
				t.Errorf("Dial of %s: %v; want a stream", person, err)
			}
			time.Sleep(time.Minute)
		}
	})
}

// opens dials a stream and closes it again.
func (s *site) opens(t *testing.T) error {
	t.Helper()
	go func() { _, _ = s.relay.Accept() }()
	stream, over, err := resume.Dial(t.Context(), s.dial)
	if err != nil {
		return err
	}
	err = stream.Close()
	<-over
	return err
}

// TestStreamBelongsToItsPerson resumes a stream with a different person's token, and with a refused
// token. The client's stream must end, and the relay's end stay open for its own person.
func TestStreamBelongsToItsPerson(t *testing.T) {
	for name, change := range map[string]func(*site){
		"different person": func(s *site) { s.person = "bob" },
		"refused":          func(s *site) { s.refused = errors.New("token revoked") },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, resume.RelayConfig{}, nil)
			defer s.end()
			s.mu.Lock()
			change(s)
			s.mu.Unlock()
			s.cut()
			<-s.clientOver
			if err := s.client.Err(); err == nil || name == "refused" && !errors.Is(err, s.refused) || name != "refused" && !errors.Is(err, resume.ErrGone) {
				t.Errorf("%s: the client's stream ends with %v; want an error, ErrGone unless refused", name, err)
			}
			if s.server.Err() != nil {
				t.Errorf("%s: the relay's end has ended: %v; want it open", name, s.server.Err())
			}
		})
	}
}

// TestCloseDeliversWhatWasWritten writes and then closes a stream at the relay, with and without a
// broken network. The client must receive all bytes.
func TestCloseDeliversWhatWasWritten(t *testing.T) {
	for _, broken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, resume.RelayConfig{}, nil)
			defer s.end()
			if _, err := s.server.Write(bytes.Repeat([]byte("x"), 300<<10)); err != nil {
				t.Fatal(err)
			}
			if broken {
				s.cut()
				synctest.Wait()
				time.Sleep(time.Second)
			}
			_ = s.server.Close()
			got, err := io.ReadAll(s.client)
			if len(got) != 300<<10 || err != nil && !errors.Is(err, resume.ErrGone) {
				t.Errorf("with a broken carrier %v: the client read %d bytes, %v; want 307200", broken, len(got), err)
			}
		})
	}
}

// TestDiscardDropsEverything discards a stream with bytes for an absent client. The pool must hold
// nothing, and the client receive nothing but ErrGone.
func TestDiscardDropsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, resume.RelayConfig{}, nil)
		defer s.end()
		s.setDown(true)
		s.cut()
		synctest.Wait()
		if _, err := s.server.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		s.server.Discard()
		if s.pool.Held() != 0 {
			t.Errorf("%d bytes are counted after Discard; want 0", s.pool.Held())
		}
		s.setDown(false)
		got, err := io.ReadAll(s.client)
		if len(got) > 0 || !errors.Is(err, resume.ErrGone) {
			t.Errorf("the client read %d bytes, %v; want none and ErrGone", len(got), err)
		}
	})
}

// raw dials a carrier on which the test sends packets of its own.
func (n *network) raw(t *testing.T) resume.Carrier {
	t.Helper()
	c, err := n.dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBadPeersLoseTheirStream sends packets that no correct client sends. The relay must end the
// carrier and its stream, and keep the good client's stream.
func TestBadPeersLoseTheirStream(t *testing.T) {
	hello := append([]byte{1, 1}, make([]byte, 32)...)
	for name, packets := range map[string][][]byte{
		"no hello":      {{9, 9}},
		"long hello":    {append(bytes.Clone(hello), 1)},
		"guessed id":    {append([]byte{1, 1}, bytes.Repeat([]byte{7}, 32)...)},
		"no packet":     {hello, {0xff}},
		"empty packet":  {hello, {}},
		"huge packet":   {hello, make([]byte, 1<<20)},
		"foreign epoch": {hello, {1, 1, 5, 1, 0, 'x'}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, resume.RelayConfig{}, nil)
			defer s.end()
			go func() {
				if conn, err := s.relay.Accept(); err == nil {
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
			c := s.raw(t)
			for _, p := range packets {
				_ = c.Send(p)
			}
			var err error
			for err == nil {
				_, err = c.Recv() // until the relay ends the carrier
			}
			time.Sleep(2 * time.Second)
			if streams, _ := s.relay.Count(); streams != 1 {
				t.Errorf("%s: the pool has %d streams; want the valid one only", name, streams)
			}
		})
	}
}

// TestBrokenCarriersAreDialledSeldom ends each carrier within a millisecond, for a minute. The
// client must pause between dials. Afterwards, the stream must continue.
func TestBrokenCarriersAreDialledSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, resume.RelayConfig{}, nil)
		defer s.end()
		before := s.dialled()
		for range 60_000 {
			s.cut()
			time.Sleep(time.Millisecond)
		}
		if n := s.dialled() - before; n < 10 || n > 60 {
			t.Errorf("the client has dialled %d times in a minute; want 10 to 60", n)
		}
		f := &flow{from: s.server, to: s.client, size: func() int { return 100 }, count: 10}
		if err := f.run(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzStream passes arbitrary packets to an end of a stream. It must not panic, and must hold no
// bytes after its end.
func FuzzStream(f *testing.F) {
	f.Add([]byte{1, 1, 0}, []byte{1, 2, 3})
	f.Add([]byte{1, 2, 0, 3, 0, 0, 9}, []byte{1, 3, 0, 'x'})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		pool := resume.NewPool(1<<20, 1<<20)
		c := resume.New(resume.Config{Window: 1 << 16, Inbox: 1 << 16, Time: time.Minute, Pool: pool, Person: "p", Local: &net.TCPAddr{}, Address: &net.TCPAddr{}})
		_, _ = c.Write([]byte("hello"))
		carrier := &listCarrier{packets: [][]byte{first, second}}
		_ = c.Attach(carrier)
		c.Discard()
		if pool.Held() != 0 {
			t.Errorf("%d bytes are counted after the stream's end; want 0", pool.Held())
		}
	})
}

// A listCarrier is a carrier that delivers the given packets and then ends.
type listCarrier struct{ packets [][]byte }

func (*listCarrier) Send([]byte) error { return nil }
func (*listCarrier) Close()            {}
func (l *listCarrier) Recv() ([]byte, error) {
	if len(l.packets) == 0 {
		return nil, io.EOF
	}
	p := l.packets[0]
	l.packets = l.packets[1:]
	return p, nil
}
