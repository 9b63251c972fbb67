package hostagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"ahprelay/ahp"
	"ahprelay/broker/registry"
	"ahprelay/internal/signal"
)

// Times of the monitor.
const (
	pingEvery    = 5 * time.Second
	pingTimeout  = 5 * time.Second        // silence after which a host is reported as silent
	listenEvery  = time.Second            // how often to check whether a silent host has sent a message to a client
	identifyTime = time.Second            // time for a host to report its AHP versions before its presence is announced without them
	aliveWithin  = 500 * time.Millisecond // how long alive waits for a sign of life
	endWithin    = 200 * time.Millisecond // a host that shuts down may still close the connection this long after an answer
	retryFirst   = 100 * time.Millisecond
	retryMost    = 2 * time.Second

	// openTime is how long a host may take to accept a connection: as long as relays
	// hold a resuming client.
	openTime = 10 * time.Minute
)

// A condition is the host's state as announced to relays.
type condition struct {
	state   registry.State
	reason  string        // close reason for clients while offline
	silent  time.Duration // length of the silence when the monitor noticed it; 0 if the host answers
	version string        // version of the host's software, and its AHP versions
}

// A monitorDial connects the monitor to the host. It calls accepted when the host has
// accepted the connection, before the handshake.
type monitorDial func(ctx context.Context, accepted func()) (hostSocket, error)

// A pinger is a hostSocket that can ping below AHP.
type pinger interface {
	// OnControl sets the function called for each ping and pong from the host. It must
	// be called before the first Read.
	OnControl(life func())
	// Ping sends a ping.
	Ping() error
}

// A monitor keeps a connection of its own to the host, so the host's state is
// known while no client is connected. It sends a ping, and an initialize that offers no
// AHP version. A host answers this initialize with an error that lists its versions, so
// the monitor never becomes a client.
//
// The monitor reports a host as gone only with proof: the host closed the connection,
// no process accepts a new one, or the host's machine acknowledged nothing for the
// resume time. A host that does not answer is silent: relays learn since when, and
// nothing else happens, because a host need not answer a ping before an initialize.
// Every message or control frame on this connection, and every message to a client, is a
// sign of life.
//
// Hosts of AHP 1.0 close a connection after they refuse this initialize. A close
// directly after the refusal therefore proves nothing, and the monitor does not ask for
// versions on the next connection.
type monitor struct {
	upstream string // the host's name in log and error messages
	dial     monitorDial
	log      *slog.Logger
	resume   time.Duration       // how long the host's machine may be unreachable before connections count as lost
	gone     func()              // called when resume is over, and again while the machine stays unreachable; may be nil
	heard    func() time.Time    // time of the host's last message to a client; may be nil
	changed  func(now condition) // called in order; must neither block nor call the monitor
	poke     chan struct{}       // ends the current wait early; capacity 1

	mu        sync.Mutex    // guards the fields below
	sock      hostSocket    // nil while the host is away
	err       error         // why the host is away; nil otherwise
	name      string        // the host's software, with its version
	speaks    string        // AHP versions, as reported by the host
	spoke     bool          // the host has sent something on this connection
	pongs     bool          // the host has answered an AHP ping on this connection
	named     time.Time     // time of the answer to initialize; zero before it
	turn      chan struct{} // closed at the next sign of life, or when the host is gone
	asked     time.Time     // start of the wait for a sign of life; zero: none is awaited
	announced condition     // last announced condition
	silent    time.Duration // length of the silence when it was announced; 0 while the host answers
	lost      *time.Timer   // runs while the host's machine is unreachable; otherwise nil
}

func newMonitor(upstream string, dial monitorDial, resume time.Duration, log *slog.Logger, changed func(now condition)) *monitor {
	return &monitor{
		upstream: upstream, dial: dial, resume: resume, log: log, changed: changed,
		poke: make(chan struct{}, 1), turn: make(chan struct{}), err: errNotYet,
	}
}

func (m *monitor) run(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = retryFirst, retryMost
	defer m.rest()
	ask := true
	for ctx.Err() == nil {
		err := m.watch(ctx, ask, wait.Reset)
		if ctx.Err() != nil {
			return
		}
		if ask = !errors.Is(err, errOfferRefused); !ask {
			continue
		}
		if !errors.Is(err, errHangs) {
			m.away(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.NextBackOff()):
		case <-m.poke:
		}
	}
}

func (m *monitor) rest() {
	m.inReach()
	m.mu.Lock()
	m.asked = time.Time{}
	m.mu.Unlock()
}

// errOfferRefused reports that the host closed the connection because it accepts none
// of the offered versions.
var errOfferRefused = errors.New("the host closed the connection after it refused the offered AHP versions")

// watch connects to the host and monitors the connection until the connection ends. If
// ask is true, it requests the host's versions. up is called when the host is present.
func (m *monitor) watch(ctx context.Context, ask bool, up func()) error {
	sock, err := m.connect(ctx)
	if err != nil {
		return err
	}
	if p, ok := sock.(pinger); ok {
		p.OnControl(m.life)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer sock.Close("host-agent stops watching")
	stop := context.AfterFunc(ctx, func() { sock.Close("host-agent stopped") })
	defer stop()
	m.mu.Lock()
	m.sock, m.spoke, m.pongs, m.named = sock, false, false, time.Time{}
	if ask { // the host may be a different program now
		m.name, m.speaks = "", ""
	}
	m.mu.Unlock()
	ended := make(chan error, 1)
	wg.Go(func() { ended <- m.readLoop(sock) })
	if err := m.identify(sock, ask, ended); err != nil {
		if m.offerRefused() {
			return errOfferRefused
		}
		return fmt.Errorf("upstream %s does not speak AHP: %w", m.upstream, err)
	}
	up()
	m.online()
	for {
		select {
		case err := <-ended:
			if m.offerRefused() {
				return errOfferRefused
			}
			return fmt.Errorf("upstream %s: connection lost: %w", m.upstream, err)
		case <-time.After(m.pause()):
		case <-m.poke:
		}
		if err := m.check(sock); err != nil {
			return err
		}
	}
}

// offerRefused reports whether the host has just refused the offer on the connection
// that ended.
func (m *monitor) offerRefused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.named.IsZero() && time.Since(m.named) < identifyTime
}

// connect dials the host. A host that accepts the connection but does not complete the
// handshake is present and silent.
func (m *monitor) connect(ctx context.Context) (hostSocket, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	sock, err := m.dial(ctx, func() {
		m.expectLife()
		time.AfterFunc(pingTimeout, m.overdue) // overdue checks whether the wait still lasts
	})
	if _, ok := sock.(pinger); ok {
		m.life() // a completed handshake
	}
	return sock, err
}

// Ids of the monitor's requests.
const (
	pingID       = 1
	initializeID = 2

	pingRequest       = `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"channel":"ahp-root://"}}`
	initializeRequest = `{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"channel":"ahp-root://","clientId":"ahp-host-agent","protocolVersions":[]}}`
)

// identify requests the host's AHP versions, or, if they are known, only a sign of
// life. It waits at most identifyTime for the answer, because a host may never answer.
func (m *monitor) identify(sock hostSocket, versions bool, ended <-chan error) error {
	requests := []string{pingRequest, initializeRequest}
	if !versions {
		requests = requests[:1]
	}
	if err := m.ask(sock, requests...); err != nil {
		return err
	}
	timeout := time.After(identifyTime)
	for {
		m.mu.Lock()
		known, turn := !m.named.IsZero() || !versions && m.spoke, m.turn
		m.mu.Unlock()
		if known {
			return nil
		}
		select {
		case err := <-ended:
			return err
		case <-timeout:
			return nil
		case <-turn:
		}
	}
}

func (m *monitor) pause() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.asked.IsZero():
		return pingEvery
	case m.silent > 0:
		return listenEvery
	}
	return max(time.Until(m.asked.Add(pingTimeout)), 0)
}

// check requests a sign of life, or checks whether a requested sign of life is overdue.
// It sends no second request in the meantime: a host that does not read would collect
// the requests.
func (m *monitor) check(sock hostSocket) error {
	m.mu.Lock()
	_, below := sock.(pinger)
	asked, pongs := m.asked, m.pongs
	m.mu.Unlock()
	switch {
	case !asked.IsZero():
		m.overdue()
		return nil
	case below || pongs: // otherwise, silence proves nothing
		return m.ask(sock, pingRequest)
	}
	return nil
}

// ask sends requests. Any sign of life counts as the answer.
func (m *monitor) ask(sock hostSocket, requests ...string) error {
	m.expectLife()
	if p, ok := sock.(pinger); ok {
		if err := p.Ping(); err != nil {
			return err
		}
	}
	for _, request := range requests {
		if err := sock.Write([]byte(request), false); err != nil {
			return err
		}
	}
	return nil
}

// expectLife begins the wait for a sign of life.
func (m *monitor) expectLife() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked.IsZero() {
		m.asked = time.Now()
	}
}

// overdue announces that the host is silent if no sign of life has arrived within
// pingTimeout. Without control frames, a host that has sent nothing yet counts as alive. A check that comes much
// too late has found this process paused, for example by SIGSTOP: the answer may still be
// unread, so overdue waits a little longer.
func (m *monitor) overdue() {
	m.mu.Lock()
	since, announced, mute := m.asked, m.silent > 0, m.sock != nil && !m.spoke
	if _, below := m.sock.(pinger); below {
		mute = false
	}
	m.mu.Unlock()
	switch {
	case since.IsZero(), !announced && time.Since(since) < pingTimeout:
		return
	case mute, m.heard != nil && m.heard().After(since):
		m.mu.Lock()
		defer m.mu.Unlock()
		m.livesLocked() // without turnLocked, because old data may have waited in the receive buffer
		return
	case announced:
		return
	}
	m.mu.Lock()
	if m.asked != since {
		m.mu.Unlock()
		return
	}
	if time.Since(since) > pingTimeout+listenEvery {
		m.asked = time.Now().Add(listenEvery - pingTimeout)
		m.mu.Unlock()
		time.AfterFunc(listenEvery, m.overdue)
		return
	}
	m.silent, m.err = time.Since(since), nil
	m.announceLocked()
	m.mu.Unlock()
	m.log.Warn("host silent", "effect", "its connections stay open", "upstream", m.upstream, "for", pingTimeout)
}

// life records a sign of life on the monitor's connection.
func (m *monitor) life() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.livesLocked()
	m.turnLocked()
}

// livesLocked ends the wait for a sign of life.
func (m *monitor) livesLocked() {
	was := m.silent
	m.asked, m.silent, m.spoke = time.Time{}, 0, true
	if was > 0 {
		m.announceLocked()
		m.log.Info("host silence ended", "upstream", m.upstream)
	}
}

func (m *monitor) turnLocked() {
	close(m.turn)
	m.turn = make(chan struct{})
}

// announceLocked announces the condition if it has changed.
func (m *monitor) announceLocked() {
	now := condition{state: registry.Online, silent: m.silent, version: m.versionLocked()}
	if m.err != nil {
		now = condition{state: registry.Offline, reason: publicReason(m.err), version: m.versionLocked()}
	}
	if now != m.announced {
		m.announced = now
		m.changed(now)
	}
}

// maxSpeaks bounds the AHP versions of a host.
const maxSpeaks = 8

// learnVersions records the versions in the host's answer to an initialize that
// offered none.
func (m *monitor) learnVersions(answer *ahp.Envelope) {
	data := [...]ahp.Member{{Name: "data"}}
	versions := [...]ahp.Member{{Name: "supportedVersions"}}
	if answer.Error == nil || ahp.Members(answer.Error, data[:]) != nil || data[0].Raw == nil ||
		ahp.Members(data[0].Raw, versions[:]) != nil {
		return
	}
	if list, ok := ahp.Texts(versions[0].Raw); ok && len(list) > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.name, m.speaks = "", strings.Join(list[:min(len(list), maxSpeaks)], ", ")
		m.knownLocked()
	}
}

// learn records the host's description from its answer to a client's initialize.
func (m *monitor) learn(result ahp.InitializeResult) {
	info := [...]ahp.Member{{Name: "name"}, {Name: "version"}}
	m.mu.Lock()
	defer m.mu.Unlock()
	if result.ServerInfo != nil && ahp.Members(result.ServerInfo, info[:]) == nil {
		name, _ := ahp.Text(info[0].Raw)
		number, _ := ahp.Text(info[1].Raw)
		if name != "" {
			m.name = strings.TrimSpace(name + " " + number)
		}
	}
	m.speaks = cmp.Or(m.speaks, result.ProtocolVersion)
	m.knownLocked()
}

// knownLocked announces the host's version if the host is present.
func (m *monitor) knownLocked() {
	if m.err == nil {
		m.announceLocked()
	}
}

// versionLocked returns the host's software and its AHP versions, as far as they are known.
func (m *monitor) versionLocked() string {
	switch {
	case m.speaks == "":
		return m.name
	case m.name == "":
		return "AHP " + m.speaks
	}
	return m.name + ", AHP " + m.speaks
}

func (m *monitor) online() {
	m.inReach()
	m.mu.Lock()
	m.err = nil
	m.announceLocked()
	version := m.versionLocked()
	m.mu.Unlock()
	m.log.Info("host connected", "upstream", m.upstream, "version", version)
	if version == "" {
		m.log.Warn("AHP version not reported by the host", "upstream", m.upstream, "hint", "check that the address is an AHP host's")
	}
}

func (m *monitor) away(err error) {
	m.mu.Lock()
	news := m.err == nil || m.sock != nil || m.err.Error() != err.Error()
	m.sock, m.err = nil, err
	m.asked, m.silent = time.Time{}, 0
	m.turnLocked()
	m.announceLocked()
	m.mu.Unlock()
	if unacknowledged, outOfReach := reach(err); outOfReach {
		m.outOfReach(unacknowledged)
	} else {
		m.inReach()
	}
	if news {
		m.log.Warn("host unavailable", "effect", "trying again", "error", err)
	}
}

// outOfReach starts the timer that calls expired after the resume time, or at once if
// over is true.
func (m *monitor) outOfReach(over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		return
	}
	left := m.resume
	if over {
		left = 0
	}
	m.lost = time.AfterFunc(left, m.expired)
}

// inReach stops the timer of an unreachable machine.
func (m *monitor) inReach() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		m.lost.Stop()
		m.lost = nil
	}
}

// expired runs when the host's machine has been unreachable for the resume time.
func (m *monitor) expired() {
	m.mu.Lock()
	away := m.lost != nil // the machine may just have returned
	if away {
		m.lost.Reset(m.resume)
	}
	m.mu.Unlock()
	if away && m.gone != nil {
		m.gone()
	}
}

// reason returns the close reason while the host is away.
func (m *monitor) reason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return publicReason(m.err)
	case m.sock == nil && m.silent == 0: // the host has just ended
		return reasonEnded
	}
	return reasonSilent
}

// suspect triggers an immediate check of the host.
func (m *monitor) suspect() { signal.Send(m.poke) }

// alive reports whether the host is present at this moment. A host that shuts down may
// answer here although it has already closed a client's connection. So its answer
// counts only if the monitor's connection stays open for endWithin afterwards.
func (m *monitor) alive(ctx context.Context) bool {
	turn, there := m.present()
	m.suspect()
	if !there {
		return false
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(aliveWithin):
		_, there = m.present()
		return there
	case <-turn:
	}
	settled := time.After(endWithin)
	for turn, there = m.present(); there; turn, there = m.present() {
		select {
		case <-ctx.Done():
			return true
		case <-settled:
			return true
		case <-turn: // further signs of life change nothing
		}
	}
	return false
}

// present reports whether the host is connected. The channel is closed at the host's
// next sign of life, or when the host is gone.
func (m *monitor) present() (turn <-chan struct{}, there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turn, m.sock != nil
}

// errNotYet is the reason for an absent host before the monitor's first connection.
var errNotYet = errors.New("not connected to the host yet")

// readLoop reads the host's messages. Each is a sign of life.
func (m *monitor) readLoop(sock hostSocket) error {
	for {
		message, _, err := sock.Read()
		if err != nil {
			m.ended(sock)
			return err
		}
		if env, err := ahp.Peek(message); err == nil && env.Kind == ahp.Response {
			m.answered(&env)
		}
		m.life()
	}
}

func (m *monitor) answered(env *ahp.Envelope) {
	switch {
	case ahp.SameID(fmt.Append(nil, pingID), env.ID):
		m.mu.Lock()
		m.pongs = true
		m.mu.Unlock()
	case ahp.SameID(fmt.Append(nil, initializeID), env.ID):
		m.learnVersions(env)
		m.mu.Lock()
		m.named = time.Now()
		m.mu.Unlock()
	}
}

// ended records the end of the connection at once.
func (m *monitor) ended(sock hostSocket) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sock == sock {
		m.sock, m.asked, m.silent = nil, time.Time{}, 0
		m.turnLocked()
	}
}
