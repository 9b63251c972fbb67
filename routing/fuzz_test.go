package routing

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// A still implements the methods that RelayEnd and AgentEnd call on their users. All do nothing;
// Watch counts its calls.
type still struct{ watched int }

func (s *still) Wake()                        {}
func (s *still) Done(uint64)                  {}
func (s *still) Watch(string) error           { s.watched++; return nil }
func (s *still) Unwatch(string)               {}
func (s *still) Event(Event)                  {}
func (s *still) Closed(ahp.CloseCode, string) {}
func (s *still) Flush()                       {}

type stillClient struct {
	still
	frames int // number of frames delivered
}

func (s *stillClient) Deliver(frames []Frame) { s.frames += len(frames) }

type stillHost struct{ still }

func (s *stillHost) Deliver([]byte, bool, int) {}

func (s *stillHost) Move(m Move) {
	if m.Ticket == "" || len(m.Ticket) > MaxTicket {
		panic("a ticket of " + strconv.Itoa(len(m.Ticket)) + " bytes")
	}
}

func record(kind recordKind, numbers ...uint64) []byte { return appendRecord(nil, kind, numbers...) }

func recordWith(data string, kind recordKind, numbers ...uint64) []byte {
	return appendBytes(record(kind, numbers...), []byte(data))
}

func moveRecord(conn uint64, ticket string) []byte {
	return appendMove(nil, conn, Move{Ticket: ticket, Until: time.Unix(2e9, 0)})
}

// FuzzRelayHandle passes arbitrary packets and bodies to a relay. The relay must either keep its
// invariants and bounds, or return an error, which ends the link.
func FuzzRelayHandle(f *testing.F) {
	refs := record(recordRefs, 1, 1)
	refs, _ = appendBodyList(refs, []uint64{1, 2, 2, 5}, 1)
	set := connSet{}
	set.add(1)
	set.add(3)
	refs = set.append(refs)
	body := encodeBody("agent", 2, []byte("two"))[bodySum:]
	f.Add(bytes.Join([][]byte{record(recordOpened, 1), record(recordReady, 1), refs}, nil), recordWith("one", recordBody, 1), body)
	sealed := set.append(record(recordTagged, 1, 1, 1, 2, 0))
	f.Add(append(sealed, make([]byte, 2*TagSize)...), recordWith("one", recordBody, 1), body)
	f.Add(refs, bytes.Join([][]byte{recordWith("five", recordBody, 5), record(recordGone, 1), recordWith("", recordClose, 1, 1012)}, nil), body)
	f.Add(recordWith("half", recordFragment, 2, fragmentFirst), recordWith("half", recordFragment, 2, fragmentLast), body)
	f.Add(recordWith("ahp-chat:_1", recordWatch, 7), record(recordUnwatch, 7), body)
	f.Add(recordWith("chunk", recordChunk, 1, fragmentLast), record(recordChunkRef, 1, 1), record(recordDrop, 1))
	f.Add(record(recordFlushed, 1), record(recordProbe, 2), record(recordCredit, 3, 1<<30))
	f.Add(record(recordMoved, 1), append(record(recordMoved, 1), record(recordFlushed, 1)...), append(refs, record(recordMoved, 1)...))
	f.Add(recordWith("half", recordFragment, 1, fragmentFirst), record(recordChunkRef, 1, 1), body)
	f.Add(appendReport(nil, Report{Conn: "x", State: []byte(`{}`), Counts: []Count{{"kind", "class", 1}}}), recordWith("{}", recordReport, 0), body)
	f.Fuzz(func(t *testing.T, first, second, heard []byte) {
		lines, client := &still{}, &stillClient{}
		encode := func(piece []byte, _, _, _ bool) []byte { return bytes.Clone(piece) }
		r := NewRelayEnd(RelayEndConfig{Agent: "agent", Encode: encode, Credit: 1000, BodyLimit: 2000, ChunkLimit: 2000, PendingLimit: 2000, Report: wantBounded(t)})
		r.Start(link.Hello{Credit: 100, MaxFrame: 1000}, lines)
		for range 3 {
			if _, err := r.Open(Open{ID: "x"}, client); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range [][]byte{first, second, first} {
			before := bytes.Clone(p)
			_, err := r.Handle(uint64(i+1), p)
			if !bytes.Equal(p, before) {
				t.Fatalf("Handle changed its packet %x to %x; want it as it was", before, p)
			}
			if err != nil {
				break
			}
			r.Body(sealBodies(append(make([]byte, bodySum), heard...)))
			if err := r.Audit(false); err != nil {
				t.Fatal(err)
			}
			for n := 0; ; n++ {
				payload, _ := r.Next(uint64(n+1), 1000, time.Time{})
				if payload == nil {
					break
				}
				if n > 10+len(p) {
					t.Fatal("Next returns more packets than the input can cause; want an end")
				}
			}
		}
		if lines.watched > maxChannels {
			t.Fatalf("the relay keeps %d subscriptions; want at most maxChannels", lines.watched)
		}
		r.Ended(link.ErrBye)
	})
}

// wantBounded returns a Report function that fails the test for a report beyond the bounds.
func wantBounded(t *testing.T) func(Report) {
	return func(r Report) {
		if again := appendReport(nil, r); len(again) > MaxReport+16 || len(r.Counts) > MaxCounts {
			t.Errorf("a report has %d bytes with %d counts; want at most MaxReport, and MaxCounts", len(again), len(r.Counts))
		}
	}
}

// FuzzAgentHandle passes arbitrary packets to a host-agent. The host-agent must either keep its
// invariants and bounds, or return an error, which ends the link. When the link has ended, nothing
// may remain.
func FuzzAgentHandle(f *testing.F) {
	open := appendOpen(nil, 3, Open{ID: "y"})
	f.Add(bytes.Join([][]byte{open, recordWith("hello", recordFrame, 3)}, nil), recordWith("", recordClose, 3, 1001))
	f.Add(recordWith("half", recordFragment, 1, fragmentFirst), recordWith("half", recordFragment, 1, fragmentLast|fragmentBinary))
	f.Add(bytes.Join([][]byte{record(recordNeed, 1), record(recordNeed, 99)}, nil), record(recordWatching, 1))
	f.Add(record(recordCredit, 1, 1<<30), record(recordFlush, 2))
	f.Add(record(recordFlush, 1), record(recordFlush, 2))
	f.Add(append(moveRecord(1, "a-ticket"), recordWith("behind", recordFrame, 1)...), recordWith("", recordClose, 1, 1001))
	f.Add(append(recordWith("", recordClose, 1, 1001), moveRecord(1, "late")...), moveRecord(99, ""))
	f.Add(appendOpen(nil, 3, Open{ID: "c", Ticket: "a-ticket"}), moveRecord(3, strings.Repeat("x", MaxTicket+1)))
	f.Add(appendOpen(nil, 1, Open{}), appendOpen(nil, maxConns, Open{}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		a := NewAgentEnd(AgentEndConfig{
			Instance: "agent", Credit: 1000, MaxFrame: 2000, QueueLimit: 2000, Window: 2000, Pinned: 2000,
			Connect: func(*AgentConn, Open) HostConn { return &stillHost{} },
		})
		l := a.Accept("relay", link.Hello{Credit: 100, MaxFrame: 1000, Chunks: 2000}, &still{}).(*agentLink)
		start := append(appendOpen(nil, 1, Open{ID: "a"}), appendOpen(nil, 2, Open{ID: "b"})...)
		if _, err := l.Handle(1, start); err != nil {
			t.Fatal(err)
		}
		for i, p := range [][]byte{first, second, first} {
			for _, c := range l.conns {
				_ = c.FromHost([]byte("for both"), false, []byte("ahp-chat:/1"))
				c.Report(func() Report { return Report{Conn: "a"} })
			}
			before := bytes.Clone(p)
			_, err := l.Handle(uint64(i+2), p)
			if !bytes.Equal(p, before) {
				t.Fatalf("Handle changed its packet %x to %x; want it as it was", before, p)
			}
			if err != nil {
				break
			}
			if err := a.Audit(false); err != nil {
				t.Fatal(err)
			}
			publish(a)
			for n := 0; ; n++ {
				payload, _ := l.Next(uint64(n+1), 1000, time.Now().Add(time.Second))
				if payload == nil {
					break
				}
				if n > 1000+len(p) {
					t.Fatal("Next returns more packets than the input can cause; want an end")
				}
			}
		}
		l.Ended(link.ErrBye)
		publish(a)
		if err := a.Audit(true); err != nil {
			t.Fatal(err)
		}
	})
}

// publish takes all bodies that the host-agent wants to publish, and confirms them.
func publish(a *AgentEnd) {
	for {
		if _, body := a.NextBody(); body == nil {
			return
		}
		a.Published()
	}
}

// FuzzRefs parses arbitrary lists of bodies and sets of connections. Those accepted must be within
// their bounds. A list, encoded and parsed again, must be equal.
func FuzzRefs(f *testing.F) {
	list, _ := appendBodyList(nil, []uint64{1, 2, 9}, 1)
	f.Add(list, uint64(1))
	set := connSet{}
	for c := range uint64(100) {
		set.add(c * c)
	}
	f.Add(set.append(nil), uint64(5))
	f.Add([]byte{setRuns, 2, 1, 0xff, 0xff, 3, 1, 1}, uint64(0))
	f.Fuzz(func(t *testing.T, data []byte, floor uint64) {
		if list, _, err := readBodyList(&link.Fields{B: data}, nil, floor); err == nil {
			again, last := appendBodyList(nil, list, floor)
			got, end, err := readBodyList(&link.Fields{B: again}, nil, floor)
			if err != nil || end != last || len(got) != len(list) || len(list) > maxRefs {
				t.Fatalf("the list %v is written and read as %v, %v; want the same", list, got, err)
			}
		}
		var s connSet
		if readConnSet(&link.Fields{B: data}, func(conn uint64) {
			if conn >= 3*maxConns {
				t.Fatalf("the set contains the connection %d; want numbers below 3*maxConns", conn)
			}
			s.add(conn)
		}) == nil && s.count > 2*maxConns {
			t.Fatalf("the set has %d connections; want at most 2*maxConns", s.count)
		}
	})
}

// FuzzBody parses arbitrary published messages with bodies. Only messages from this host-agent may
// be accepted. Bodies must lie inside the message in order, and encode to the same bytes.
func FuzzBody(f *testing.F) {
	f.Add(encodeBody("agent", 7, []byte("frame"))[bodySum:])
	f.Add(encodeBody("other", 7, []byte("frame"))[bodySum:])
	f.Add(encodeBodies("agent", []*body{{number: 7, frame: []byte("frame")}, {number: 900, frame: []byte{}}, {number: 8, frame: make([]byte, 200)}})[bodySum:])
	f.Fuzz(func(t *testing.T, data []byte) {
		var list []*body
		end := 0
		ok := readBodies(data, "agent", func(number uint64, free, from, to int) {
			if free < end || from < free || to < from || to > len(data) {
				t.Fatalf("body %d is at %d to %d, its room begins at %d, and the previous body ends at %d; want bodies in order", number, from, to, free, end)
			}
			end = to
			list = append(list, &body{number: number, frame: data[from:to]})
		})
		if ok != (len(list) > 0) || ok && end != len(data) {
			t.Fatalf("readBodies(%x) = %v with %d bodies, the last ends at %d; want true exactly for a list without rest", data, ok, len(list), end)
		}
		if !ok {
			return
		}
		if !bytes.Contains(data, []byte("agent")) {
			t.Fatalf("readBodies accepts %x of a different host-agent; want false", data)
		}
		again := encodeBodies("agent", list)[bodySum:]
		if data[0] == bodyVersion {
			again = encodeBody("agent", list[0].number, list[0].frame)[bodySum:]
		}
		if len(again) > len(data) || !bytes.HasSuffix(data, again[len(again)-len(list[len(list)-1].frame):]) {
			t.Fatalf("the body %x is encoded again as %x; want the same end", data, again)
		}
	})
}

func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"conn":"c","state":{"a":1},"counts":[{"kind":"refusal","class":"x.y","n":1}]}`))
	f.Add([]byte(`{"state":null,"counts":[{"kind":"A","class":"","n":-1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := readReport(data)
		if err != nil {
			return
		}
		for _, c := range r.Counts {
			if !validLabel(c.Kind) || !validLabel(c.Class) || c.N < 1 { // relays use these in metrics
				t.Errorf("the report counts %+v; want valid labels and a number of at least 1", c)
			}
		}
		again, err := encodeReport(r)
		if err == nil {
			_, err = readReport(again)
		}
		if err != nil && len(again) <= MaxReport {
			t.Errorf("readReport accepts %s, but refuses its encoding %s: %v", data, again, err)
		}
	})
}
