package hostagent

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/hostagent/remembering"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// A sealedRemote is a client's connection to a sealed host, at the relay. It keeps the frames that
// the host-agent sends.
type sealedRemote struct {
	w       *world
	conn    *routing.RelayConn
	session *sealed.Session
	device  sealed.Fingerprint
	greeted []byte // body of the last record that came with the welcome

	mu     sync.Mutex
	frames [][]byte
	sizes  [16]int // bytes of all frames, by their kind
	opened bool
	moved  bool // the host-agent keeps the connection for the client's next relay
	code   ahp.CloseCode
	reason string
}

// Event implements [routing.ClientConn].
func (r *sealedRemote) Event(e routing.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened, r.moved = r.opened || e == routing.Opened, r.moved || e == routing.Moved
}

// Deliver implements [routing.ClientConn].
func (r *sealedRemote) Deliver(frames []routing.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		if r.w.framed {
			decodePieces(f.Data, func(frame, _ []byte, _, _, _ bool) { r.keep(frame) }) // no sealed frame has several pieces
		} else {
			r.keep(f.Data)
		}
	}
}

func (r *sealedRemote) keep(frame []byte) {
	r.frames = append(r.frames, bytes.Clone(frame))
	r.sizes[frame[0]] += len(frame)
}

// Closed implements [routing.ClientConn].
func (r *sealedRemote) Closed(code ahp.CloseCode, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.code, r.reason = code, reason
}

// take waits until nothing happens, and returns the frames since the last call.
func (r *sealedRemote) take() (frames [][]byte) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	frames, r.frames = r.frames, nil
	return frames
}

func (r *sealedRemote) send(frames ...[]byte) {
	r.w.Helper()
	for _, frame := range frames {
		if err := r.conn.Send(context.Background(), frame); err != nil {
			r.w.Errorf("sending a frame: %v; want no error", err)
		}
	}
	synctest.Wait()
}

// post encrypts a body with this content, and sends it to the host-agent.
func (r *sealedRemote) post(content sealed.Content, body string) {
	r.w.Helper()
	frames, err := r.session.Seal(content, []byte(body))
	if err != nil {
		r.w.Fatal(err)
	}
	r.send(frames...)
}

// opens decrypts the frames since the last call. It returns the content of each, and the last body.
func (r *sealedRemote) opens() (contents []sealed.Content, last []byte) {
	r.w.Helper()
	for _, frame := range r.take() {
		content, body, done, err := r.session.Open(frame)
		if err != nil || !done {
			r.w.Fatalf("opening the client's frame: done %v, %v; want a whole record", done, err)
		}
		contents, last = append(contents, content), body
	}
	return contents, last
}

// openSealed seals the host, and connects a paired device with the level operate.
func (w *world) openSealed(window int) *sealedRemote {
	w.Helper()
	return w.openSealedAs(vaultDevice{Level: auth.AccessWrite}, sealed.Greeting{Window: window})
}

// openSealedAs seals the host, pairs a new device with the level and channels of known, and
// connects it.
func (w *world) openSealedAs(known vaultDevice, greeting sealed.Greeting) *sealedRemote {
	w.Helper()
	w.seal()
	device, err := sealed.NewDevice()
	if err != nil {
		w.Fatal(err)
	}
	w.knows(device, known)
	return w.openSealedBy(device, greeting)
}

// seal gives the host-agent a new vault, unless it has one already.
func (w *world) seal() {
	w.Helper()
	if w.agent.seals == nil {
		v, err := openVault(w.TempDir(), "default", "laptop")
		if err != nil {
			w.Fatal(err)
		}
		w.agent.cfg.Sealed, w.agent.cfg.MaxQueued = &Sealing{}, 1<<30
		w.agent.seals = &seals{agent: w.agent, vault: v}
	}
}

// knows adds a device to the vault, as pairing does. It belongs to ada and ends after an hour.
func (w *world) knows(device *sealed.Device, known vaultDevice) {
	w.Helper()
	v, id := w.agent.seals.vault, device.Identity()
	known.Subject, known.Seen, known.End, known.Key, known.Verifier = "ada", time.Now(), time.Now().Add(time.Hour), id.Key[:], id.Verifier[:]
	v.state.Devices = append(v.state.Devices, known)
}

// openSealedBy connects a paired device: it performs the handshake and waits for the welcome.
func (w *world) openSealedBy(device *sealed.Device, greeting sealed.Greeting) *sealedRemote {
	w.Helper()
	var err error
	r := &sealedRemote{w: w, device: device.Identity().Fingerprint()}
	if r.conn, err = w.relay.Open(routing.Open{ID: "c", Subject: "eve", Access: "admin", Sealed: true}, r); err != nil {
		w.Fatal(err)
	}
	key := w.agent.seals.secret.Public()
	i, frame, err := sealed.NewInitiator(sealed.InitiatorConfig{Host: "laptop", HostKey: &key, Device: device, Limit: 1 << 20, Greeting: greeting})
	if err != nil {
		w.Fatal(err)
	}
	r.send(frame)
	frames := r.take()
	if len(frames) != 1 {
		w.Fatalf("%d frames come; want the second of the handshake", len(frames))
	}
	if frame, r.session, err = i.Read(frames[0]); err != nil {
		w.Fatal(err)
	}
	r.send(frame)
	var contents []sealed.Content
	if contents, r.greeted = r.opens(); len(contents) == 0 || contents[0] != sealed.Welcome {
		w.Fatalf("the host-agent sends %v; want a welcome", contents)
	}
	return r
}

// TestSilentClientsLeaveRoomForHandshakes has people of the relay open more connections to a sealed host than
// it accepts handshakes at a time, and begin none of them. The paired devices of others must still be
// admitted. When the silent connections have ended, there must be as much room as before.
func TestSilentClientsLeaveRoomForHandshakes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.openSealed(15)
		for _, subjects := range []int{1, 7, maxHandshakes / 2} {
			var silent []*sealedRemote
			for i := range 2 * maxHandshakes {
				r := &sealedRemote{w: w}
				var err error
				if r.conn, err = w.relay.Open(routing.Open{ID: "s", Subject: fmt.Sprint("mallory", i*subjects/(2*maxHandshakes)), Access: "read", Sealed: true}, r); err != nil {
					t.Fatal(err)
				}
				silent = append(silent, r)
			}
			synctest.Wait()
			w.openSealed(15)
			refused := 0
			for _, r := range silent {
				r.mu.Lock()
				if r.code == ahp.CloseOverloaded {
					refused++
				}
				r.mu.Unlock()
			}
			if want := maxHandshakes + 1; refused != want { // one for the device
				t.Errorf("of %d silent connections of %d subjects, %d are refused; want %d", len(silent), subjects, refused, want)
			}
			time.Sleep(handshakeTime + endWithin)
		}
	})
}

// TestSealedSilenceEndsTheConnection has a client that stops sending. The host-agent must keep
// sending heartbeats, and end the connection after the window that the client chose.
func TestSealedSilenceEndsTheConnection(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openSealed(15)
		for range 4 { // the connection stays while the client sends heartbeats
			time.Sleep(sealed.Beat + time.Second)
			contents, body := r.opens()
			if len(contents) != 1 || contents[0] != sealed.Heartbeat {
				t.Fatalf("the host-agent sends %v; want a heartbeat", contents)
			}
			if _, ok := sealed.ReadHeartbeat(body); !ok {
				t.Errorf("ReadHeartbeat refuses the host-agent's %d bytes; want a heartbeat", len(body))
			}
			beat, err := r.session.Seal(sealed.Heartbeat, sealed.AppendHeartbeat(r.session.Opened()))
			if err != nil {
				t.Fatal(err)
			}
			r.send(beat...)
		}
		time.Sleep(3*sealed.Beat + time.Second)
		contents, body := r.opens()
		code, reason, ok := sealed.ReadClose(body)
		if contents[len(contents)-1] != sealed.Close || !ok || code != ahp.CloseResync || reason != silentReason {
			t.Errorf("after a silence of the relay, the client receives %v, %d %q; want a close with %d %q", contents, code, reason, ahp.CloseResync, silentReason)
		}
		time.Sleep(endWithin)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.code != ahp.CloseResync || r.reason != "" {
			t.Errorf("the relay got the close %d %q; want %d without a reason", r.code, r.reason, ahp.CloseResync)
		}
	})
}

// TestBusyHostKeepsSealedConnections has a host read nothing, or not accept the connection, for longer than
// the window of its sealed client, which keeps sending heartbeats. The client must stay connected, and the
// host must then get its messages. When the client falls silent, the connection must end, though the relay
// keeps sending requests of its own.
func TestBusyHostKeepsSealedConnections(t *testing.T) {
	for name, makeBusy := range map[string]func(h *fakeHost, c chan struct{}){
		"reads nothing":   func(h *fakeHost, c chan struct{}) { h.gate = c },
		"accepts nothing": func(h *fakeHost, c chan struct{}) { h.hangs = c },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				c := make(chan struct{})
				w.host.set(func() { makeBusy(w.host, c) })
				r := w.openSealed(15)
				const message = `{"jsonrpc":"2.0","method":"m"}`
				r.post(sealed.Message, message)
				for range 12 {
					time.Sleep(sealed.Beat)
					r.post(sealed.Heartbeat, string(sealed.AppendHeartbeat(r.session.Opened())))
				}
				if contents, _ := r.opens(); len(contents) < 10 || slices.Contains(contents, sealed.Close) {
					t.Fatalf("while the host %s, the host-agent sends %v; want heartbeats", name, contents)
				}
				r.post(sealed.Message, message)
				close(c)
				if got := w.hostSide().messages(); len(got) != 2 {
					t.Errorf("the host received %q; want two messages", got)
				}
				for range 4 {
					time.Sleep(sealed.Beat)
					r.conn.Flush()
				}
				if contents, _ := r.opens(); !slices.Contains(contents, sealed.Close) {
					t.Errorf("after a silence of the client, the host-agent sends %v; want a close", contents)
				}
			})
		})
	}
}

// TestTakenMessagesWaitForTheHost has a writer that has taken messages from its queue and written none. They must
// count as waiting, so that their client does not count as silent. Requests of the relay must not count.
func TestTakenMessagesWaitForTheHost(t *testing.T) {
	for _, test := range []struct {
		queue []delivery
		want  bool
	}{
		{[]delivery{{}}, true}, {[]delivery{{flush: true}, {}}, true}, {[]delivery{{flush: true}}, false}, {nil, false},
	} {
		w := hostWriter{queue: test.queue}
		before := w.waits()
		if w.nextBatch(); before != test.want || w.waits() != test.want {
			t.Errorf("%d deliveries: waits is %v in the queue, and %v with the writer; want %v", len(test.queue), before, w.waits(), test.want)
		}
		if w.nextBatch(); w.waits() {
			t.Errorf("%d deliveries: they wait after the writer is done; want none", len(test.queue))
		}
	}
}

// TestSilenceIsMeasuredByTheMonotonicClock has a sealed client and the host send something. The times at
// which they were last heard must have readings of the monotonic clock: otherwise, a change of the system's
// clock would end connections, or hide a silence.
func TestSilenceIsMeasuredByTheMonotonicClock(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openSealed(15)
		r.post(sealed.Message, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"channel":"ahp-root://"}}`)
		for _, c := range w.agent.clients.every() {
			for who, at := range map[string]time.Time{"client": c.conn.seal.heard.Get(), "host": w.agent.clients.lastHeard()} {
				if ago := time.Since(at); ago < 0 || ago > time.Second || at == at.Round(0) {
					t.Errorf("the %s was last heard at %v; want now, with a monotonic reading", who, at)
				}
			}
		}
	})
}

// TestSealedLieEndsTheConnection has a relay deliver a client's record twice. The host must get the
// message once, and the host-agent must close the connection in the sealed stream.
func TestSealedLieEndsTheConnection(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openSealed(30)
		frames, err := r.session.Seal(sealed.Message, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.send(frames...)
		r.send(frames...) // the relay repeats the record
		contents, body := r.opens()
		code, _, _ := sealed.ReadClose(body)
		if contents[len(contents)-1] != sealed.Close || code != ahp.CloseResync {
			t.Errorf("after a repeated record, the host-agent sends %v, close code %d; want a close with CloseResync", contents, code)
		}
		if got := w.hostSide().messages(); len(got) != 1 {
			t.Errorf("the host received %q; want one message", got)
		}
	})
}

// TestLateHandshakeMayBeRepeated interrupts a handshake for longer than the host-agent waits, as a network or a
// machine that sleeps does. The close code must permit another attempt: clients take CloseBadMessage for a
// host with a different key, and ahp-connect then ends.
func TestLateHandshakeMayBeRepeated(t *testing.T) {
	inWorld(t, func(w *world) {
		w.seal()
		device, err := sealed.NewDevice()
		if err != nil {
			t.Fatal(err)
		}
		w.knows(device, vaultDevice{Level: auth.AccessWrite})
		r := &sealedRemote{w: w}
		if r.conn, err = w.relay.Open(routing.Open{ID: "c", Subject: "eve", Access: "admin", Sealed: true}, r); err != nil {
			t.Fatal(err)
		}
		key := w.agent.seals.secret.Public()
		_, first, err := sealed.NewInitiator(sealed.InitiatorConfig{Host: "laptop", HostKey: &key, Device: device, Limit: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		r.send(first)
		time.Sleep(handshakeTime + time.Second)
		r.take()
		if r.code != ahp.CloseResync {
			t.Errorf("a handshake without its third message ends with %d %s; want %d", r.code, r.reason, ahp.CloseResync)
		}
	})
}

// TestSealedConnectionHasLessThanItsDevice connects devices whose connections have less authority
// than their level, because of the greeting, the grant's channels or the owner's settings. The
// limits must hold for messages to the host, and for requests to the host-agent.
func TestSealedConnectionHasLessThanItsDevice(t *testing.T) {
	talk := gate.NewPolicy(auth.AccessTalk, nil, nil, true)
	for name, c := range map[string]struct {
		device              vaultDevice
		wanted              auth.Access
		change              func(*Config)
		manages             bool
		subscribes, creates bool
	}{
		"an owner's":          {device: vaultDevice{Level: auth.AccessAdmin}, manages: true, subscribes: true, creates: true},
		"below own":           {device: vaultDevice{Level: auth.AccessWrite}, subscribes: true, creates: true},
		"greeting: operate":   {device: vaultDevice{Level: auth.AccessAdmin}, wanted: auth.AccessWrite, subscribes: true, creates: true},
		"greeting: look":      {device: vaultDevice{Level: auth.AccessAdmin}, wanted: auth.AccessRead, subscribes: true},
		"greeting: more":      {device: vaultDevice{Level: auth.AccessRead}, wanted: auth.AccessAdmin, subscribes: true},
		"channels of a grant": {device: vaultDevice{Level: auth.AccessAdmin, Channels: []string{"s:/other"}}},
		"--allow":             {device: vaultDevice{Level: auth.AccessAdmin}, change: func(c *Config) { c.Allow = &talk }, subscribes: true},
		"--approve-only":      {device: vaultDevice{Level: auth.AccessAdmin}, change: func(c *Config) { c.ApproveOnly = []string{"eve"} }, subscribes: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				if c.change != nil {
					c.change(&w.agent.cfg)
				}
				r := w.openSealedAs(c.device, sealed.Greeting{Window: 30, Level: c.wanted})
				r.post(sealed.Ask, `{"id":1,"do":"devices"}`)
				contents, body := r.opens()
				if refused := bytes.Contains(body, []byte("manage devices")); len(contents) != 1 || contents[0] != sealed.Answer || refused == c.manages {
					t.Errorf("the host-agent answers the request for devices with %v %s; want the devices only if manages: %v", contents, body, c.manages)
				}
				for method, passes := range map[string]bool{"subscribe": c.subscribes, "createSession": c.creates} {
					before := len(w.hostSide().messages())
					r.post(sealed.Message, `{"jsonrpc":"2.0","id":2,"method":"`+method+`","params":{"channel":"s:/1"}}`)
					if passed := len(w.hostSide().messages()) > before; passed != passes {
						t.Errorf("the request %s reaches the host: %v; want %v", method, passed, passes)
					}
				}
			})
		})
	}
}

// TestSealedMessagesAreChecked sends invalid messages in a sealed stream, where no relay can refuse
// them. The host-agent must not pass them to the host, and must close the connection.
func TestSealedMessagesAreChecked(t *testing.T) {
	for name, message := range map[string]string{
		"no JSON":            `{"jsonrpc":"2.0","id":1,"method":"ping"`,
		"a batch":            `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		"a number":           `1`,
		"two messages":       `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`,
		"two methods":        `{"jsonrpc":"2.0","id":1,"method":"ping","method":"createSession"}`,
		"no UTF-8":           "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"a\":\"\xff\"}}",
		"endless depth":      `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`,
		"an id as an object": `{"jsonrpc":"2.0","id":{},"method":"ping"}`,
		"empty":              ``,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := w.openSealed(30)
				frames, err := r.session.Seal(sealed.Message, []byte(message))
				if err != nil {
					t.Fatal(err)
				}
				r.send(frames...)
				if got := w.hostSide().messages(); len(got) != 0 {
					t.Errorf("the host receives %.100q; want nothing", got)
				}
				contents, body := r.opens()
				code, _, _ := sealed.ReadClose(body)
				if contents[len(contents)-1] != sealed.Close || code != ahp.CloseBadMessage {
					t.Errorf("the client receives %v with %d; want a close with %d", contents, code, ahp.CloseBadMessage)
				}
			})
		})
	}
}

// TestSealedHostHasNoAddresses requests addresses of canvases and previews, which a relay would
// serve and could read. The host-agent must answer that the host is sealed, and the host must get
// nothing.
func TestSealedHostHasNoAddresses(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openSealed(30)
		for _, method := range []string{"relay/canvasTicket", "relay/preview", "relay/previews", "relay/previewClose"} {
			frames, err := r.session.Seal(sealed.Message, []byte(`{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":{"channel":"s:/1","uri":"ahp-canvas-content:/i/","port":5173}}`))
			if err != nil {
				t.Fatal(err)
			}
			r.send(frames...)
			contents, body := r.opens()
			if contents[len(contents)-1] != sealed.Message || !bytes.Contains(body, []byte(`"id":7,"error"`)) || !bytes.Contains(body, []byte("this host is sealed")) {
				t.Errorf("%s: the client gets %v, the last with %s; want an error to request 7, because the host is sealed", method, contents, body)
			}
		}
		if got := w.hostSide().messages(); len(got) != 0 {
			t.Errorf("the host receives %q; want nothing", got)
		}
	})
}

// TestRelayLearnsNoReasonOfASealedHost kicks the client of a sealed host, and lets a relay open a connection
// without sealing in the name of a blocked person, as if a client had moved. The relay must learn neither
// the reason of the kick nor who is blocked: it gets close codes, and the reason for all that is not sealed.
func TestRelayLearnsNoReasonOfASealedHost(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.openSealed(30)
		if ended, err := w.agent.kick(Kick{Subject: "ada", For: time.Hour}); ended != 1 || err != nil {
			t.Fatalf("kick of ada ended %d connections, %v; want 1", ended, err)
		}
		synctest.Wait()
		if r.code != ahp.CloseForbidden || r.reason != "" {
			t.Errorf("for the kicked client, the relay gets the close %d %q; want %d without a reason", r.code, r.reason, ahp.CloseForbidden)
		}
		for _, subject := range []string{"ada", "bob"} {
			asked := &sealedRemote{w: w}
			if _, err := w.relay.Open(routing.Open{ID: "d", Subject: subject, Access: "read", Ticket: "ticket"}, asked); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if asked.code != ahp.CloseForbidden || asked.reason != sealedReason {
				t.Errorf("opening without sealing as %s, the relay gets the close %d %q; want %d %q", subject, asked.code, asked.reason, ahp.CloseForbidden, sealedReason)
			}
		}
	})
}

// pairAgain pairs a device with a new code of this level, as a person at the host confirms it, and returns
// its connection.
func (w *world) pairAgain(device *sealed.Device, level auth.Access) *sealedRemote {
	w.Helper()
	r := w.proves(device, w.newCode(level))
	w.confirms(r)
	return r
}

// newCode returns a new code for a device of ada with this level.
func (w *world) newCode(level auth.Access) sealed.Code {
	w.Helper()
	v := w.agent.seals.vault
	if _, err := v.makeCode("ada", level, sealed.PairLink{Relay: "https://relay.example.com", Host: "laptop"}); err != nil {
		w.Fatal(err)
	}
	code, _ := v.validCode()
	return code
}

// proves connects a device that proves a code. Its pairing then waits for a person at the host.
func (w *world) proves(device *sealed.Device, code sealed.Code) *sealedRemote {
	w.Helper()
	r := &sealedRemote{w: w, device: device.Identity().Fingerprint()}
	var err error
	if r.conn, err = w.relay.Open(routing.Open{ID: "p", Subject: "eve", Access: "admin", Sealed: true}, r); err != nil {
		w.Fatal(err)
	}
	key := w.agent.seals.secret.Public()
	i, frame, err := sealed.NewInitiator(sealed.InitiatorConfig{Host: "laptop", HostKey: &key, Code: &code, Device: device, Limit: 1 << 20, Greeting: sealed.Greeting{Window: 30}})
	if err != nil {
		w.Fatal(err)
	}
	r.send(frame)
	frames := r.take()
	if len(frames) != 1 {
		w.Fatalf("the host-agent closes with %d %q; want the second of the handshake", r.code, r.reason)
	}
	if frame, r.session, err = i.Read(frames[0]); err != nil {
		w.Fatal(err)
	}
	r.send(frame)
	if contents, _ := r.opens(); len(contents) != 1 || contents[0] != sealed.Pending {
		w.Fatalf("the host-agent sends %v, and closes with %d %q; want that the pairing waits", contents, r.code, r.reason)
	}
	return r
}

// confirms confirms the device's pairing at the host.
func (w *world) confirms(r *sealedRemote) {
	w.Helper()
	if err := w.agent.seals.decide(r.device.String(), true); err != nil {
		w.Fatal(err)
	}
	var contents []sealed.Content
	if contents, r.greeted = r.opens(); len(contents) == 0 || contents[0] != sealed.Welcome {
		w.Fatalf("the host-agent sends %v; want a welcome", contents)
	}
}

// TestLostPairingMayBeRepeated ends a device's connection while its pairing waits for a person at the host, as a
// phone does whose screen is locked meanwhile. The code must stay valid for a further attempt, unless
// there is a newer code.
func TestLostPairingMayBeRepeated(t *testing.T) {
	inWorld(t, func(w *world) {
		w.seal()
		phone, err := sealed.NewDevice()
		if err != nil {
			t.Fatal(err)
		}
		code := w.newCode(auth.AccessWrite)
		w.proves(phone, code).conn.Close(ahp.CloseShuttingDown, "")
		synctest.Wait()
		w.confirms(w.proves(phone, code))
		if _, valid := w.agent.seals.validCode(); valid {
			t.Error("the code is valid after the pairing; want it used")
		}

		lost := w.proves(phone, w.newCode(auth.AccessWrite))
		newer := w.newCode(auth.AccessTalk)
		lost.conn.Close(ahp.CloseShuttingDown, "")
		synctest.Wait()
		if now, valid := w.agent.seals.validCode(); !valid || now != newer {
			t.Error("a newer code is not valid after an earlier pairing was lost; want it valid")
		}
	})
}

// TestPairingAgainEndsFormerAuthority pairs a device again, with the same level and then with a lower one,
// while it and a device that it has admitted are connected. With the same level, the connections must
// continue. With the lower one they must end, because they have the former level: their devices connect again.
func TestPairingAgainEndsFormerAuthority(t *testing.T) {
	inWorld(t, func(w *world) {
		w.seal()
		phone := newDevice(t)
		watch := newDevice(t)
		w.knows(phone, vaultDevice{Level: auth.AccessAdmin})
		now := time.Now()
		grant, err := phone.SignGrant(w.agent.seals.secret.Public(), sealed.Grant{
			Device: watch.Identity(), Subject: "ada", Level: auth.AccessWrite, From: now, End: now.Add(time.Hour), Serial: sealed.Fingerprint{1}.String(),
		})
		if err != nil {
			t.Fatal(err)
		}
		before := []*sealedRemote{w.openSealedBy(phone, sealed.Greeting{Window: 30}), w.openSealedBy(watch, sealed.Greeting{Window: 30, Grants: []string{grant}})}
		again := w.pairAgain(phone, auth.AccessAdmin)
		for i, r := range before {
			if r.code != 0 {
				t.Errorf("connection %d ends with %d when the device is paired with the same level; want it to continue", i, r.code)
			}
		}
		last := w.pairAgain(phone, auth.AccessRead)
		for i, r := range append(before, again) {
			if r.code != ahp.CloseResync {
				t.Errorf("connection %d is closed with %d when its device is paired with a lower level; want %d", i, r.code, ahp.CloseResync)
			}
		}
		if last.code != 0 {
			t.Errorf("the connection with the present level ends with %d; want it to continue", last.code)
		}
	})
}

// TestPairingAgainEndsTheKeys pairs a device again with a lower level. A device that it had admitted is not
// admitted any more, and has the keys for remembered sessions, so the keys must be renewed. Holders that got
// the keys after the pairing must keep them, also while the clock is set back.
func TestPairingAgainEndsTheKeys(t *testing.T) {
	inWorld(t, func(w *world) {
		w.seal()
		phone := newDevice(t)
		w.pairAgain(phone, auth.AccessAdmin)
		ended := lastStates{agent: w.agent}.config().Ended
		holder := func(at time.Time) *remembering.Holder {
			h := &remembering.Holder{End: time.Now().Add(time.Hour), Rests: []string{phone.Identity().Fingerprint().String(), sealed.Fingerprint{1}.String()}}
			h.At = at.UTC()
			return h
		}
		before := holder(time.Now())
		if ended(before) {
			t.Error("a holder is ended although its devices have their authority")
		}
		time.Sleep(time.Minute + time.Millisecond)
		w.pairAgain(phone, auth.AccessRead)
		if !ended(before) {
			t.Error("a holder is not ended although the device that has admitted it was paired again")
		}
		if ended(holder(time.Now())) {
			t.Error("a holder that got the keys after the pairing is ended")
		}
		w.agent.seals.state.Devices[0].Since = time.Now().Add(time.Hour)
		if ended(holder(time.Now())) {
			t.Error("a holder that got the keys after the clock was set back is ended")
		}
	})
}

// TestPairingAgainAtOnceEndsTheKeys pairs a device again in the second in which a device that it had admitted
// got the keys for remembered sessions. The keys must be renewed. A holder that gets the keys later in
// this second must keep them.
func TestPairingAgainAtOnceEndsTheKeys(t *testing.T) {
	inWorld(t, func(w *world) {
		w.seal()
		phone := newDevice(t)
		w.knows(phone, vaultDevice{Level: auth.AccessAdmin})
		w.openSealedBy(phone, sealed.Greeting{Window: 30})
		c := w.agent.clients.every()[0]
		ended := lastStates{agent: w.agent}.config().Ended
		before := c.keyHolder()
		time.Sleep(time.Millisecond)
		w.pairAgain(phone, auth.AccessRead)
		if !ended(&before) {
			t.Error("a holder is not ended although the device that has admitted it was paired again in the same second")
		}
		time.Sleep(time.Millisecond)
		if after := c.keyHolder(); ended(&after) {
			t.Error("a holder that got the keys after the pairing is ended")
		}
	})
}

// TestKeysAreNotForFormerAuthority has a client request the keys for remembered sessions after its device was
// paired again with a lower level, and before its connection ends for that reason. It must get an error.
func TestKeysAreNotForFormerAuthority(t *testing.T) {
	inWorld(t, func(w *world) {
		w.seal()
		phone := newDevice(t)
		w.knows(phone, vaultDevice{Level: auth.AccessAdmin})
		keeper, err := remembering.New(lastStates{agent: w.agent}.config())
		if err != nil {
			t.Fatal(err)
		}
		w.agent.last = lastStates{w.agent, keeper}
		r := w.openSealedBy(phone, sealed.Greeting{Window: 30})
		for _, level := range []auth.Access{auth.AccessAdmin, auth.AccessRead} {
			again := &waitingDevice{PairingRequest: PairingRequest{Subject: "ada", Level: level}}
			if err := w.agent.seals.leave(again, phone.Identity(), true); err != nil {
				t.Fatal(err)
			}
			r.post(sealed.Message, `{"jsonrpc":"2.0","id":1,"method":"relay/rememberKeys","params":{"channel":"ahp-root://"}}`)
			_, answer := r.opens()
			env, err := ahp.Peek(answer)
			if err != nil {
				t.Fatal(err)
			}
			if got := env.Error == nil; got != (level == auth.AccessAdmin) {
				t.Errorf("after a pairing with the level %s, the client gets keys: %v; want them for an equal level only", level, got)
			}
		}
	})
}
