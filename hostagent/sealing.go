package hostagent

import (
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/clock"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// A sealing is the host-agent's end of a client's sealed stream.
type sealing struct {
	agent   *Agent
	line    *clientLine
	session *sealed.Session // its Open is called by one goroutine at a time
	window  time.Duration   // the connection ends after a silence of Beat plus this time
	end     func()          // ends the connection to the host
	device  *sealed.Authority
	guest   bool   // the client is a viewer of a link, and counts against the link's bound
	manages bool   // the client may list and remove devices
	class   string // connections with the same class have equal authority and may share messages; "": it shares none

	identity sealed.Identity // keys of the client's device
	browser  vaultBrowser    // the browser that gets the device's notifications, without keys and target

	held   int        // bytes counted in seals.held; used only by the goroutine that calls open
	heard  clock.Time // when the last record was opened
	opened atomic.Uint64
	writer atomic.Pointer[hostWriter]  // opens the records and writes to the host; nil: the client is not yet admitted
	crowd  atomic.Pointer[viewerCrowd] // nil: in none. Changes under mu

	mu     sync.Mutex // guards the fields below, and the order of records
	over   bool
	left   bool           // the guest no longer counts against the link's bound
	shares bool           // the client has asked for shared messages
	parts  bool           // the client has also asked for shared parts of messages
	viewer bool           // the client shares its connection to the host with other viewers
	seats  []*viewerCrowd // crowds whose keys the client may have
	told   int64          // highest serverSeq that the client got in crowds which it has left
	epochs []uint32       // epochs whose keys the client has, at most sealed.MaxEpochs
	timer  *time.Timer    // sends the next heartbeat
	until  *time.Timer    // ends the connection when the device's authority expires; nil: not yet admitted

	tagging sync.Mutex         // guards the fields below; may be locked while routing's lock is held
	on      *routing.AgentConn // the relay's connection on which message bodies get tags
	before  uint64             // records that the client received through earlier relays
	greeted uint64             // handshake messages on this relay's connection
}

// newSealing begins the sealed stream after a handshake.
func newSealing(a *Agent, line *clientLine, arrival *sealed.Arrival, greeted int, end func()) *sealing {
	window := time.Duration(arrival.Greeting.Window) * time.Second
	s := &sealing{
		agent: a, line: line, session: arrival.Session, window: min(max(window, sealed.MinWindow), sealed.MaxWindow), end: end,
		on: line.now.Load(), greeted: uint64(greeted),
	}
	line.seal = s
	s.heard.Set(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(sealed.Beat, s.beat)
	return s
}

// take seals a parcel and queues it for the client. due reports whether to wake the link's
// writer.
func (s *sealing) take(content sealed.Content, body []byte) (due bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(content, body)
}

func (s *sealing) takeLocked(content sealed.Content, body []byte) (due bool, err error) {
	if s.over {
		return false, routing.ErrConnClosed
	}
	s.leaveCrowd()
	if content == sealed.Message && s.parts && s.class != "" {
		if taken, due, err := s.takeJoined(body); taken {
			return due, err
		}
	}
	frames, err := s.session.Seal(content, body)
	if err != nil {
		return false, err
	}
	for _, frame := range frames {
		if due, err = s.put(frame); err != nil {
			return false, err
		}
	}
	return due, nil
}

// put queues a record on the present line, or keeps it while the client changes relays. The
// mutex is held.
func (s *sealing) put(frame []byte) (due bool, err error) {
	if m := s.line.moving.Load(); m != nil {
		return false, m.keep(frame, true, nil)
	}
	return s.line.now.Load().Take(frame, true, nil)
}

// arrives continues the stream on the client's next line, which gets the kept records
// first. The mutex is held.
func (s *sealing) arrives(line *routing.AgentConn, kept int) {
	s.tagging.Lock()
	defer s.tagging.Unlock()
	s.on, s.before, s.greeted = line, s.session.Sealed()-uint64(kept), 0
}

// tag returns the next tag for a line. The tag is invalid if the client has left that line.
func (s *sealing) tag(line *routing.AgentConn, sum [32]byte, own uint64) (tag [routing.TagSize]byte) {
	s.tagging.Lock()
	defer s.tagging.Unlock()
	if line != s.on {
		return tag
	}
	return s.session.Tag(sum, s.before+own-s.greeted)
}

func (s *sealing) send(content sealed.Content, body []byte) error {
	due, err := s.take(content, body)
	if due {
		s.line.Send()
	}
	return err
}

// close ends the connection after its queued messages. The reason is sealed for the client.
func (s *sealing) close(code ahp.CloseCode, reason string) {
	s.mu.Lock()
	if !s.over {
		_, _ = s.takeLocked(sealed.Close, sealed.AppendClose(code, reason)) // fails if the client has left
		s.over = true
		s.endCrowds(true)
	}
	s.mu.Unlock()
	s.agent.seals.shared.leave(s, true)
	s.line.endMove()
	s.line.now.Load().Close(code, "")
}

// silence ends the stream without a close record, because the connection is about to be
// cut. The client gets no more keys. The sets and crowds that it was in get new keys.
func (s *sealing) silence() {
	s.mu.Lock()
	s.over = true
	s.endCrowds(true)
	s.mu.Unlock()
	s.agent.seals.shared.leave(s, true)
}

// stop ends the stream: it releases the timers, leaves all sets and crowds, and stops
// counting a link's viewer. No record is sent afterwards.
func (s *sealing) stop() {
	s.agent.seals.held.Add(-int64(s.held)) // open is not called any more
	s.held = 0
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true // so the stream joins no more sets
	s.endCrowds(false)
	s.agent.seals.shared.leave(s, false)
	s.timer.Stop()
	if s.until != nil {
		s.until.Stop()
	}
	if s.guest && !s.left {
		s.left = true
		s.agent.seals.exit(s.device)
	}
}

// silentReason is the close reason after a silence.
const silentReason = "no sealed message for too long: the relay delivers nothing from this client"

// beat sends a heartbeat, or ends the connection if the client was silent for too long.
func (s *sealing) beat() {
	// A record that waits for the host is not yet opened, and the host may take nothing for a long time.
	waits := false
	if w := s.writer.Load(); w != nil {
		waits = w.waits()
	}
	if !waits && time.Since(s.heard.Get()) > sealed.Beat+s.window {
		s.close(ahp.CloseResync, silentReason)
		s.end()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if s.crowd.Load() == nil { // a crowd has its own heartbeats
		due, _ := s.takeLocked(sealed.Heartbeat, sealed.AppendHeartbeat(s.opened.Load())) // fails if the client has left
		if due {
			s.line.Send()
		}
	}
	s.timer.Reset(sealed.Beat)
}

// admitted records the device's authority, and sends the welcome.
func (s *sealing) admitted(a *sealed.Authority) error {
	s.mu.Lock()
	s.until = time.AfterFunc(time.Until(a.End), func() {
		s.close(ahp.CloseTokenEnded, sealed.ErrEnded.Error())
		s.end()
	})
	s.mu.Unlock()
	welcome := sealed.Admission{Subject: a.Subject, Level: a.Level, End: a.End.Unix()}
	if s.guest { // a link's viewer derives its subject from the link
		welcome.Subject = ""
	}
	body, err := welcome.Encode()
	if err != nil {
		return err
	}
	return s.send(sealed.Welcome, body)
}

// errParcels reports that incomplete messages of clients take too much memory.
var errParcels = errors.New("too many long messages for the host at once")

var errUnsealed = errors.New("a message that is not sealed")

// open opens a record from the client. If the record completes an AHP message, open returns
// the message, and otherwise nil.
func (s *sealing) open(d *delivery) ([]byte, error) {
	if !d.binary {
		return nil, errUnsealed
	}
	content, body, done, err := s.session.Open(d.message)
	if err != nil {
		return nil, err
	}
	s.heard.Set(time.Now())
	s.opened.Store(s.session.Opened())
	if held := s.session.Held(); held != s.held {
		total := s.agent.seals.held.Add(int64(held - s.held))
		s.held = held
		if total > int64(s.agent.cfg.MaxQueued/2) {
			return nil, errParcels
		}
	}
	if !done {
		return nil, nil
	}
	switch content {
	case sealed.Message:
		return body, nil
	case sealed.Heartbeat:
		if _, ok := sealed.ReadHeartbeat(body); !ok {
			return nil, errors.New("sealed heartbeat of a wrong length")
		}
		return nil, nil
	case sealed.Close: // the relay's close record follows
		return nil, nil
	case sealed.Ask:
		return nil, s.ask(body)
	}
	return nil, errors.New("sealed record for the other direction")
}

// urlOff explains why a sealed host has no canvases and previews by URL.
const urlOff = "this host is sealed: its canvases and previews have no address on the web, because the relay would read them. Canvases are shown inside the sealed connection"

// refusesURL answers a sealed client's request for the address of a canvas or preview. On
// connections that are not sealed, the relay answers such requests or passes them to the
// host.
func (w *hostWriter) refusesURL(env *ahp.Envelope) (isRequest bool, err error) {
	if w.c.conn.seal == nil || env.Kind != ahp.Request {
		return false, nil
	}
	switch string(env.Method) {
	case "relay/canvasTicket", "relay/preview", "relay/previews", "relay/previewClose":
		return true, w.answerHere(func() []byte {
			return ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, urlOff, nil)
		})
	}
	return false, nil
}

// broken ends a connection after an error in its sealed stream.
func (c *hostConn) broken(err error) error {
	c.log.Warn("sealed stream broken", "error", err, "relay", c.conn.Relay())
	c.conn.Close(ahp.CloseResync, err.Error())
	c.cancel()
	return errBadMessage
}

// maxAsk bounds a request to the host-agent, in bytes.
const maxAsk = 4 << 10

// A sealedAsk is a device's request to the host-agent itself.
type sealedAsk struct {
	ID     int64  `json:"id"`
	Do     string `json:"do"`
	Device string `json:"device,omitempty"`
	Parts  bool   `json:"parts,omitempty"` // with "share": the client also supports shared parts

	// With "push": the browser's notification target at the relay, and the browser's keys.
	Target  string `json:"way,omitempty"`
	Details bool   `json:"details,omitempty"`
	sealed.Subscription
}

type sealedAnswer struct {
	ID      int64        `json:"id"`
	Devices []DeviceInfo `json:"devices,omitzero"`
	Done    bool         `json:"done,omitempty"`
	Signer  string       `json:"verifier,omitempty"` // with "push": verifies the host's notifications
	Error   string       `json:"error,omitempty"`
}

func (s *sealing) ask(body []byte) error {
	var asked sealedAsk
	if len(body) > maxAsk || json.Unmarshal(body, &asked) != nil {
		return errors.New("sealed request that cannot be read")
	}
	answer := sealedAnswer{ID: asked.ID}
	switch {
	case asked.Do == "share":
		s.mu.Lock()
		s.shares, s.parts = true, asked.Parts
		s.mu.Unlock()
		return nil
	case s.guest:
		answer.Error = "a link is for its session only"
	case asked.Do == "push":
		b := s.browser
		b.Target, b.Details, b.Subscription = asked.Target, asked.Details, asked.Subscription
		var err error
		if answer.Signer, err = s.agent.seals.subscribe(s.identity, b); err != nil {
			answer.Error = err.Error()
		}
		answer.Done = answer.Error == ""
	case !s.manages:
		answer.Error = "only devices with the level own, for all channels, manage devices"
	case asked.Do == "devices":
		answer.Devices = s.agent.seals.devices()
	case asked.Do == "remove":
		if err := s.agent.seals.removeDevice(asked.Device, false); err != nil {
			answer.Error = err.Error()
		}
		answer.Done = answer.Error == ""
	default:
		answer.Error = "unknown request"
	}
	said, err := json.Marshal(answer)
	if err == nil {
		err = s.send(sealed.Answer, said)
	}
	if err != nil {
		return err
	}
	s.agent.seals.endRemoved() // after the answer, because the client's own device may be removed
	return nil
}

const removedReason = "this device, or one that has admitted it, has been removed from the host"

// removeDevice removes a device, or a grant by its serial, durably. The caller then calls
// endRemoved.
func (s *seals) removeDevice(what string, owner bool) error {
	if err := s.remove(what, owner); err != nil {
		return err
	}
	s.agent.cfg.Log.Info(auditMessage, "event", "device removed", "device", what)
	return nil
}

func (s *seals) endRemoved() {
	s.endAll(func(seal *sealing) bool { return s.removedOf(seal.device) }, ahp.CloseTokenEnded, removedReason)
}

// isFormer reports whether a device has different authority since it was connected, because it, or the device
// that has admitted it, was paired again. A link's device is never paired again.
func (s *seals) isFormer(seal *sealing) bool {
	if seal.guest {
		return false
	}
	now, err := sealed.Admit(s.vault, s.secret.Public(), seal.identity, seal.browser.Grants, time.Now())
	return err != nil || now.Subject != seal.device.Subject || now.Level != seal.device.Level
}

// endFormer ends the connections with authority from before a pairing. The devices connect again.
func (s *seals) endFormer() {
	s.endAll(s.isFormer, ahp.CloseResync, "this device, or one that has admitted it, was paired again")
}

// endAll ends the sealed connections that ends selects. It then replaces the keys for remembered
// sessions if a device that may not have them any more has them.
func (s *seals) endAll(ends func(*sealing) bool, code ahp.CloseCode, reason string) {
	for _, c := range s.agent.clients.every() {
		if seal := c.conn.seal; seal == nil || !ends(seal) || c.kicked.Swap(true) {
			continue
		}
		c.conn.Close(code, reason)
		c.cancel()
	}
	if keeper := s.agent.last.keeper; keeper != nil {
		keeper.HolderEnded()
	}
}
