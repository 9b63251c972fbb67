package loadgen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if asked, err := Main(os.Args[1:], nil); asked {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const testChannel = "ahp-chat:/test"

func testFormat(t testing.TB) *Format {
	t.Helper()
	f, err := NewFormat(testChannel, 512)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFormatFindsEveryChangedByte changes each byte of an action in turn. Check must
// notice each change, except of digits.
func TestFormatFindsEveryChangedByte(t *testing.T) {
	f := testFormat(t)
	at := time.Now().UnixNano()
	action := f.Append(nil, 7, 3, at)
	if n, when, ok := f.Check(action); n != 3 || when != at || !ok || len(action) != 512 {
		t.Fatalf("Check(%s) = %d, %d, %v; want 3, the time, true", action, n, when, ok)
	}
	for i := range action {
		changed := bytes.Clone(action)
		changed[i] ^= 1
		n, when, ok := f.Check(changed)
		digit := action[i] >= '0' && action[i] <= '9' && changed[i] >= '0' && changed[i] <= '9' && i < 512-f.text
		if ok && !digit { // digits may differ, because they are numbers
			t.Errorf("with byte %d, %q, changed, Check = %d, %d, %v; want false", i, action[i], n, when, ok)
		}
	}
	if _, _, ok := f.Check(action[:511]); ok {
		t.Error("Check accepts a short action; want false")
	}
	if _, err := NewFormat(testChannel, 100); err == nil {
		t.Error("NewFormat(100) succeeds; want an error")
	}
}

func FuzzFormatCheck(f *testing.F) {
	format := testFormat(f)
	f.Add(format.Append(nil, 1, 1, 1e18))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, _, ok := format.Check(b)
		if ok && !bytes.HasSuffix(b, append(format.content(n), textEnd...)) {
			t.Errorf("Check accepts %q; want an error", b)
		}
	})
}

func FuzzNextFrame(f *testing.F) {
	f.Add(appendFrame(nil, opText, []byte("x")))
	f.Add(appendMasked(nil, opBinary, make([]byte, 300)))
	f.Add(appendHead(nil, opText, 1<<20, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		f, used, err := nextFrame(bytes.Clone(b))
		if used < 0 || used > len(b) || len(f.payload) > used || err != nil && used != 0 {
			t.Errorf("nextFrame(%x) = %v, %d, %v; want lengths within the input", b, f, used, err)
		}
	})
}

// TestFramesRoundTrip writes frames with every size of header, masked and unmasked, and
// reads them.
func TestFramesRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20} {
		payload := bytes.Repeat([]byte{'y'}, size)
		for _, b := range [][]byte{appendFrame(nil, opText, payload), appendMasked(nil, opText, payload)} {
			for _, short := range []int{0, 1, len(b) - 1} {
				if _, used, err := nextFrame(b[:short]); used != 0 || err != nil {
					t.Errorf("nextFrame of %d of %d bytes uses %d, %v; want 0, and no error", short, len(b), used, err)
				}
			}
			f, used, err := nextFrame(b)
			if err != nil || used != len(b) || !f.fin || f.op != opText || !bytes.Equal(f.payload, payload) {
				t.Errorf("a frame with %d bytes is read as opcode %d, %d of %d bytes, %v; want the same payload", size, f.op, used, len(b), err)
			}
		}
	}
	masked := []byte{finBit | opText, maskBit | 3, 1, 2, 3, 4, 'a' ^ 1, 'b' ^ 2, 'c' ^ 3}
	if f, _, err := nextFrame(masked); err != nil || string(f.payload) != "abc" {
		t.Errorf("a masked frame is read as %q, %v; want abc", f.payload, err)
	}
	for _, bad := range [][]byte{{0x71, 0}, append([]byte{finBit | opText, 127}, 0xff, 0, 0, 0, 0, 0, 0, 0)} {
		if _, _, err := nextFrame(bad); err == nil {
			t.Errorf("nextFrame(%x) succeeds; want an error", bad)
		}
	}
}

// newReader returns a reader with a loop that reads no sockets.
func newReader(t *testing.T, kind string) *reader {
	t.Helper()
	l := &loop{readers: map[int]*reader{}}
	return &reader{fd: -1, group: &group{args: ConnectArgs{Group: "g", Kind: kind, Channel: testChannel}, loop: l, format: testFormat(t)}}
}

// TestReaderCountsFramesHoweverCut gives a reader a stream in random pieces. It must
// count every frame, wherever a piece begins.
func TestReaderCountsFramesHoweverCut(t *testing.T) {
	for _, kind := range []string{AHP, NATS} {
		f := testFormat(t)
		var stream []byte
		for n := range int64(20) {
			action := f.Append(nil, n, n+1, 1e18)
			if kind == NATS {
				stream = fmt.Appendf(stream, "MSG %s 1 %d\r\n%s\r\n", testChannel, len(action), action)
			} else if n%3 == 1 { // the message is in two pieces
				first := len(stream)
				stream = appendFrame(stream, opText, action[:len(action)/2])
				stream[first] &^= finBit
				stream = appendFrame(stream, 0, action[len(action)/2:])
			} else {
				stream = appendFrame(stream, opText, action)
			}
		}
		if kind == NATS { // a message may begin in the middle of a frame
			all := stream
			stream = nil
			for len(all) > 0 {
				n := min(777, len(all))
				stream = appendFrame(stream, opBinary, all[:n])
				all = all[n:]
			}
		}
		for _, piece := range []int{1, 7, 500, 4096, len(stream)} {
			r := newReader(t, kind)
			r.group.timed = true
			for rest := stream; len(rest) > 0; {
				n := min(piece, len(rest))
				b := append(r.rest, rest[:n]...)
				rest = rest[n:]
				used, err := r.take(b, 1e18+5)
				if err != nil {
					t.Fatalf("%s in pieces of %d bytes: %v; want no error", kind, piece, err)
				}
				r.rest = b[used:]
			}
			if r.group.frames != 20 || r.action != 20 || len(r.group.delays) != 20 || r.group.delays[3] != 5 {
				t.Errorf("%s in pieces of %d bytes: %d frames, action %d, delays %v; want 20, 20, and a delay of 5", kind, piece, r.group.frames, r.action, r.group.delays)
			}
		}
	}
}

// TestReaderFindsLostFrames gives a reader streams with a lost, a repeated, a changed
// and a closing frame. Each must be an error.
func TestReaderFindsLostFrames(t *testing.T) {
	f := testFormat(t)
	action := func(n int64) []byte { return appendFrame(nil, opText, f.Append(nil, n, n, 1e18)) }
	changed := action(2)
	changed[len(changed)-10] ^= 1
	for name, test := range map[string]struct {
		then []byte
		want string
	}{
		"lost":     {action(3), "after action 1, the reader received action 3"},
		"repeated": {action(1), "after action 1, the reader received action 1"},
		"changed":  {changed, "after action 1, the reader received"},
		"other":    {appendFrame(nil, opText, []byte("{}")), "after action 1, the reader received"},
		"closed":   {appendFrame(nil, opClose, append([]byte{0x03, 0xf5}, "why"...)), "closed with 1013 why"},
	} {
		r := newReader(t, AHP)
		_, err := r.take(append(action(1), test.then...), 0)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", name, err, test.want)
		}
	}
}

func TestCountersAreShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c")
	a, err := OpenCounters(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenCounters(file)
	if err != nil {
		t.Fatal(err)
	}
	a.slots[Slots-1].Store(5)
	if got := b.slots[Slots-1].Load(); got != 5 {
		t.Errorf("the second opening of the file reads %d; want 5", got)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestSummarySortsDelays(t *testing.T) {
	var delays []time.Duration
	for i := range 200 {
		delays = append(delays, time.Duration(200-i))
	}
	if got := Summary(delays); got != (Delays{200, 101, 199, 200}) {
		t.Errorf("summary = %+v; want 200, 101, 199 and 200", got)
	}
	if got := Summary(nil); got != (Delays{}) {
		t.Errorf("summary of no delays = %+v; want zeros", got)
	}
}

// startBoth starts a host and clients as processes. It also returns the host's URL.
func startBoth(t *testing.T) (host, clients *Process, url string) {
	t.Helper()
	dir := t.TempDir()
	host, clients = start(t, dir, HostRole), start(t, dir, ClientsRole)
	call(t, host, "Host.URL", None{}, &url)
	return host, clients, url
}

func start(t *testing.T, dir, role string) *Process {
	t.Helper()
	p, err := Start(dir, role, role, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func call(t *testing.T, p *Process, method string, args, reply any) {
	t.Helper()
	if err := p.Call(method, args, reply); err != nil {
		t.Fatal(err)
	}
}

// TestStreamReachesPausedAndReturningClients streams while a reader pauses and while
// readers reconnect. All must receive every action. A lost frame must be reported.
func TestStreamReachesPausedAndReturningClients(t *testing.T) {
	host, clients, url := startBoth(t)
	var took time.Duration
	call(t, clients, "Clients.Connect", ConnectArgs{Group: "g", Kind: AHP, URL: url, Channel: testChannel, Size: 512, Readers: 4, Slot: 3, Quiet: 1}, &took)
	args := StreamArgs{Channels: []string{testChannel}, Size: 512, For: 20 * time.Millisecond, Pace: Pace{Burst: 5, Window: 20}, Slot: 3, Readers: 3}
	call(t, clients, "Clients.Time", Switch{"g", true}, &None{})
	call(t, clients, "Clients.Pause", Switch{"g", true}, &None{})
	var reply StreamReply
	call(t, host, "Host.Stream", args, &reply)
	var state State
	call(t, clients, "Clients.State", "g", &state)
	if reply.Delivered != 3*reply.Actions || int(state.Frames) != reply.Delivered || state.Delays.Count != reply.Delivered || len(state.Ended) > 0 {
		t.Errorf("Host.Stream = %+v, and the clients have %+v; want every action at 3 clients", reply, state)
	}
	var said int64
	call(t, host, "Host.Said", testChannel, &said)
	if err := clients.Call("Clients.Await", AwaitArgs{"g", said, time.Millisecond}, &took); err == nil {
		t.Errorf("Await succeeds for action %d while a reader is paused; want an error", said)
	}
	call(t, clients, "Clients.Pause", Switch{"g", false}, &None{})
	call(t, clients, "Clients.Await", AwaitArgs{"g", said, time.Minute}, &took)
	call(t, clients, "Clients.Reconnect", ReconnectArgs{"g", url, time.Minute}, &took)
	call(t, host, "Host.Stream", args, &reply)
	args.Readers, args.Patience = 4, 50*time.Millisecond // a reader more than are connected, so its frames are missing
	if err := host.Call("Host.Stream", args, &reply); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("Host.Stream to an absent reader: %v; want an error about lost frames", err)
	}
	args.MayLose = true
	call(t, host, "Host.Stream", args, &reply)
	if reply.Lost == 0 || reply.Lost+reply.Delivered != 4*reply.Actions {
		t.Errorf("%+v; want a loss", reply)
	}
	call(t, clients, "Clients.Disconnect", "g", &None{})
	if err := clients.Call("Clients.State", "g", &state); err == nil {
		t.Error("Clients.State of a disconnected group succeeds; want an error")
	}
}

// TestAnswersOfAllSizesAreChecked reads resources with different sizes. Every byte of
// each response is checked.
func TestAnswersOfAllSizesAreChecked(t *testing.T) {
	_, clients, url := startBoth(t)
	call(t, clients, "Clients.Dial", DialArgs{Group: "c", URL: url, Callers: 2}, &None{})
	for _, size := range []int{200, 512, 100_000, 9 << 20} {
		var reply CallReply
		call(t, clients, "Clients.Call", CallArgs{Group: "c", Request: 512, Answer: size, Every: time.Millisecond}, &reply)
		if reply.Delays.Count != 2 {
			t.Errorf("calls with answers of %d bytes: %+v; want 2 delays", size, reply)
		}
	}
	if err := clients.Call("Clients.Call", CallArgs{Group: "other"}, &CallReply{}); err == nil {
		t.Error("Clients.Call of a group that does not exist succeeds; want an error")
	}
	if checkAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"data":"bo","encoding":"utf-8"}}`), "1", 66) == nil {
		t.Error("checkAnswer accepts a changed answer; want an error")
	}
}

// TestCallersAnswerPingsBetweenCalls pings a caller before and after a call. Only after
// its answer does the test go on. A call on a connection that has ended since must
// report the server's reason.
func TestCallersAnswerPingsBetweenCalls(t *testing.T) {
	rested := make(chan error)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := acceptWS(w, r)
		if err != nil {
			rested <- err
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(dialTime))
		for range 2 { // initialize, and a call
			var request struct{ ID json.RawMessage }
			message, err := c.message()
			err = errors.Join(err, json.Unmarshal(message, &request))
			head, tail, left, _ := answerParts(request.ID, 512)
			rested <- errors.Join(err, c.send(opText, []byte(head+string(corpus()[:left])+tail)), c.echo())
		}
		rested <- c.send(opClose, append([]byte{0x03, 0xf5}, "why"...))
		_, _ = c.next() // the caller leaves
	}))
	defer server.Close()
	clients := start(t, t.TempDir(), ClientsRole)
	answers := func() {
		t.Helper()
		if err := <-rested; err != nil {
			t.Fatal(err)
		}
	}
	call(t, clients, "Clients.Dial", DialArgs{Group: "c", URL: server.URL, Callers: 1}, &None{})
	answers()
	args := CallArgs{Group: "c", Request: 512, Answer: 512}
	call(t, clients, "Clients.Call", args, &CallReply{})
	answers()
	answers()
	if err := clients.Call("Clients.Call", args, &CallReply{}); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("a call after the server's close: %v; want the reason, why", err)
	}
	if err := clients.Call("Clients.Call", args, &CallReply{}); err == nil {
		t.Error("another call after the server's close succeeds; want an error")
	}
}

// TestWriterDeliversItsFeed sends a feed to a Writer with each kind of write. All
// readers must receive it.
func TestWriterDeliversItsFeed(t *testing.T) {
	for _, role := range []string{WriterRole, TogetherRole} {
		t.Run(role, func(t *testing.T) { testWriter(t, role) })
	}
}

func testWriter(t *testing.T, role string) {
	dir := t.TempDir()
	host, clients, writer := start(t, dir, HostRole), start(t, dir, ClientsRole), start(t, dir, role)
	var at WriterAddresses
	call(t, writer, role+".Addresses", None{}, &at)
	var took time.Duration
	call(t, clients, "Clients.Connect", ConnectArgs{Group: "w", Kind: Plain, URL: at.URL, Channel: testChannel, Size: 512, Readers: 3}, &took)
	var reply StreamReply
	call(t, host, "Host.Stream", StreamArgs{Channels: []string{testChannel}, Size: 512, Feed: at.Feed, Pace: Pace{Burst: 300}, Readers: 3}, &reply)
	if reply.Delivered != 900 {
		t.Errorf("the reply is %+v; want 900 messages delivered", reply)
	}
}

// TestProcessReportsProcessorTimeUntilItEnds reads the processor time of a process
// while it runs. After its end, reading fails.
func TestProcessReportsProcessorTimeUntilItEnds(t *testing.T) {
	p := start(t, t.TempDir(), HostRole)
	call(t, p, "Host.URL", None{}, new(string)) // makes the process use some processor time
	if used, err := CPU(p.Pid()); err != nil || used <= 0 {
		t.Errorf("CPU = %v, %v; want some processor time", used, err)
	}
	if err := p.Call("Host.Said", 3, &None{}); err == nil {
		t.Error("a call with wrong arguments succeeds; want an error")
	}
	p.Close()
	if err := p.Call("Host.URL", None{}, new(string)); err == nil {
		t.Error("an ended process answers; want an error")
	}
	if _, err := CPU(p.Pid()); err == nil {
		t.Error("CPU of an ended process succeeds; want an error")
	}
}
