package hostagent

import (
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
)

// Times of the monitor.
const (
	pingEvery    = 5 * time.Second
	pingTimeout  = 5 * time.Second        // a host that shows no life for so long is silent
	listenEvery  = time.Second            // for life of a silent host on the connections of clients
	identifyTime = time.Second            // for a host to say which AHP it speaks, before others hear that it is there
	aliveWithin  = 500 * time.Millisecond // the end of a host decides between two close codes
	endWithin    = 200 * time.Millisecond // and may follow an answer of one that is shutting down
	retryFirst   = 100 * time.Millisecond
	retryMost    = 2 * time.Second

	// openTime is how long a host may take to open a connection: as long as a
	// client that resumes is held.
	openTime = 10 * time.Minute
)

// A condition is how the host is.
type condition struct {
	state   registry.State
	reason  string        // for clients: why it is offline
	silent  time.Duration // how long it had not answered when that was noticed; 0: it answers
	version string        // of its software, or of the AHP that it speaks
}

// A monitorDial connects to the host, for the monitor. It calls accepted when
// somebody has taken the connection, and only the host's word is missing.
type monitorDial func(ctx context.Context, accepted func()) (hostSocket, error)

// A pinger is a hostSocket that can ask for life below AHP.
type pinger interface {
	// OnControl has life called for each ping and pong of the host. It must be
	// called before the first Read.
	OnControl(life func())
	// Ping asks for one.
	Ping() error
}

// A monitor keeps a connection of its own to the host, which is how a
// host-agent knows how the host is when no client is there. It asks what every
// host answers at any time: ping; and which AHP versions the host speaks, by an
// initialize that offers none, so that it is no client.
//
// A host is gone when there is proof: its socket ended, or nobody takes
// another, or its machine has acknowledged nothing for the resume time. One
// that only does not answer is silent: others hear since when, and nothing
// else happens. It has no duty to answer a ping before an initialize; any
// message is life, and any control frame, and whatever it says to a client.
//
// Hosts of AHP 1.0 close a connection whose offer they refuse. So one that ends
// right behind that answer says nothing about the host: on the next one the
// monitor asks for no versions.
type monitor struct {
	upstream string // as messages name it
	dial     monitorDial
	log      *slog.Logger
	resume   time.Duration       // how long the host's machine may be out of reach before connections count as gone
	gone     func()              // called when it is, and again as long as it is; nil: nobody cares
	heard    func() time.Time    // when the host last said something to a client; nil: there are none
	changed  func(now condition) // called in order; must not block, nor call the monitor
	poke     chan struct{}       // holds one: do not wait, look now

	mu     sync.Mutex    // guards the fields below
	sock   hostSocket    // nil while the host is away
	err    error         // why it is; nil: it is there
	name   string        // of the host's software, with its version
	speaks string        // versions of AHP, as the host says them
	spoke  bool          // it has shown life on this connection
	pongs  bool          // and answered a ping of AHP
	named  time.Time     // when it has answered the initialize; zero: it has not
	turn   chan struct{} // closed when it shows life here, or goes away
	asked  time.Time     // since when it owes a sign of life; zero: it does not
	told   condition     // that others heard of last
	silent time.Duration // it does not answer: what asked had grown to when others were told
	lost   *time.Timer   // ends the time of a machine that is out of reach; nil while it is not
}

func newMonitor(upstream string, dial monitorDial, resume time.Duration, log *slog.Logger, changed func(now condition)) *monitor {
	return &monitor{
		upstream: upstream, dial: dial, resume: resume, log: log, changed: changed,
		poke: make(chan struct{}, 1), turn: make(chan struct{}), err: errNotYet,
	}
}

// run watches the host until ctx ends.
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
		if ask = !errors.Is(err, errTurnedAway); !ask {
			continue
		}
		if !errors.Is(err, errHangs) {
			m.away(err)
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.poke:
		}
		timer.Stop()
	}
}

// rest has nothing happen any more.
func (m *monitor) rest() {
	m.inReach()
	m.mu.Lock()
	m.asked = time.Time{}
	m.mu.Unlock()
}

// errTurnedAway reports a connection that the host has ended because no version
// that was offered suits it.
var errTurnedAway = errors.New("the host has closed a connection whose offer it refused")

// watch connects to the host and looks after it until its connection ends. It
// asks for the versions that the host speaks, if it is to.
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
	m.mu.Unlock()
	ended := make(chan error, 1)
	wg.Go(func() { ended <- m.readLoop(sock) })
	if err := m.identify(sock, ask, ended); err != nil {
		if m.turnedAway() {
			return errTurnedAway
		}
		return fmt.Errorf("upstream %s does not speak AHP: %w", m.upstream, err)
	}
	up()
	m.online()
	for {
		timer := time.NewTimer(m.pause())
		select {
		case err := <-ended:
			timer.Stop()
			if m.turnedAway() {
				return errTurnedAway
			}
			return fmt.Errorf("upstream %s: connection lost: %w", m.upstream, err)
		case <-timer.C:
		case <-m.poke:
			timer.Stop()
		}
		if err := m.look(sock); err != nil {
			return err
		}
	}
}

// turnedAway reports whether the host has just refused the offer of the
// connection that has ended.
func (m *monitor) turnedAway() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.named.IsZero() && time.Since(m.named) < identifyTime
}

// connect dials the host. Somebody who takes the connection and says no more is
// there, and silent.
func (m *monitor) connect(ctx context.Context) (hostSocket, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	sock, err := m.dial(ctx, func() {
		m.owes()
		time.AfterFunc(pingTimeout, m.overdue) // which looks whether it still does
	})
	if _, ok := sock.(pinger); ok {
		m.life() // it was a handshake
	}
	return sock, err
}

// Requests of the monitor. Their numbers tell their answers apart.
const (
	pingID       = 1
	initializeID = 2

	pingRequest       = `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"channel":"ahp-root://"}}`
	initializeRequest = `{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"channel":"ahp-root://","clientId":"ahp-host-agent","protocolVersions":[]}}`
)

// identify asks what is at the other end. It returns when that has said which
// AHP it speaks, or after a while: it may not want to. If it has said so before,
// it is only to show life.
func (m *monitor) identify(sock hostSocket, versions bool, ended <-chan error) error {
	requests := []string{pingRequest, initializeRequest}
	if !versions {
		requests = requests[:1]
	}
	if err := m.ask(sock, requests...); err != nil {
		return err
	}
	timer := time.NewTimer(identifyTime)
	defer timer.Stop()
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
		case <-timer.C:
			return nil
		case <-turn:
		}
	}
}

// pause is how long the monitor does nothing.
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

// look asks the host for a sign of life, or looks whether it has given one. As
// long as it owes one it is not asked for more, which it might never read.
func (m *monitor) look(sock hostSocket) error {
	m.mu.Lock()
	_, below := sock.(pinger)
	asked, pongs := m.asked, m.pongs
	m.mu.Unlock()
	switch {
	case !asked.IsZero():
		m.overdue()
		return nil
	case below || pongs: // else nobody can know
		return m.ask(sock, pingRequest)
	}
	return nil
}

// ask sends requests, of which any sign of life is an answer.
func (m *monitor) ask(sock hostSocket, requests ...string) error {
	m.owes()
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

// owes notes that the host is to show that it is there.
func (m *monitor) owes() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked.IsZero() {
		m.asked = time.Now()
	}
}

// overdue looks whether the host has been silent for too long.
func (m *monitor) overdue() {
	m.mu.Lock()
	since, told, mute := m.asked, m.silent > 0, m.sock != nil && !m.spoke
	if _, below := m.sock.(pinger); below {
		mute = false
	}
	m.mu.Unlock()
	switch {
	case since.IsZero(), !told && time.Since(since) < pingTimeout:
		return
	case mute, m.heard != nil && m.heard().After(since):
		m.mu.Lock()
		defer m.mu.Unlock()
		m.livesLocked() // which does not say that it still does: that may have waited here to be read
		return
	case told:
		return
	}
	m.mu.Lock()
	if m.asked != since {
		m.mu.Unlock()
		return
	}
	m.silent, m.err = time.Since(since), nil
	m.tellLocked()
	m.mu.Unlock()
	m.log.Warn("host does not answer; its connections are kept", "upstream", m.upstream, "for", pingTimeout)
}

// life notes that the host has shown some on the monitor's connection.
func (m *monitor) life() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.livesLocked()
	m.turnLocked()
}

// livesLocked notes that the host owes no sign of life.
func (m *monitor) livesLocked() {
	was := m.silent
	m.asked, m.silent, m.spoke = time.Time{}, 0, true
	if was > 0 {
		m.tellLocked()
		m.log.Info("host answers again", "upstream", m.upstream)
	}
}

func (m *monitor) turnLocked() {
	close(m.turn)
	m.turn = make(chan struct{})
}

// tellLocked tells others how the host is, if that is news.
func (m *monitor) tellLocked() {
	now := condition{state: registry.Online, silent: m.silent, version: m.versionLocked()}
	if m.err != nil {
		now = condition{state: registry.Offline, reason: publicReason(m.err), version: m.versionLocked()}
	}
	if now != m.told {
		m.told = now
		m.changed(now)
	}
}

// maxSpeaks is how many versions of AHP a host is said to speak at most.
const maxSpeaks = 8

// learnVersions takes what the host says when no version suits it.
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

// learn takes what a host told a client about itself.
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
	if m.speaks == "" {
		m.speaks = result.ProtocolVersion
	}
	m.knownLocked()
}

// knownLocked tells others what is known of the host now.
func (m *monitor) knownLocked() {
	if m.err == nil {
		m.tellLocked()
	}
}

// versionLocked is what is known of the host's software and of the AHP that it
// speaks.
func (m *monitor) versionLocked() string {
	switch {
	case m.speaks == "":
		return m.name
	case m.name == "":
		return "AHP " + m.speaks
	}
	return m.name + ", AHP " + m.speaks
}

// online tells others that the host is there.
func (m *monitor) online() {
	m.inReach()
	m.mu.Lock()
	m.err = nil
	m.tellLocked()
	version := m.versionLocked()
	m.mu.Unlock()
	m.log.Info("host is up", "upstream", m.upstream, "version", version)
	if version == "" {
		m.log.Warn("the host does not say which AHP it speaks: is this an AHP host's port?", "upstream", m.upstream)
	}
}

// away tells others that the host is gone.
func (m *monitor) away(err error) {
	m.mu.Lock()
	news := m.err == nil || m.sock != nil || m.err.Error() != err.Error()
	m.sock, m.err = nil, err
	m.asked, m.silent = time.Time{}, 0
	m.turnLocked()
	m.tellLocked()
	m.mu.Unlock()
	if unacknowledged, outOfReach := reach(err); outOfReach {
		m.outOfReach(unacknowledged)
	} else {
		m.inReach()
	}
	if news {
		m.log.Warn("host is away; trying again", "error", err)
	}
}

// outOfReach begins the time in which the host's machine may come back, unless
// that is over.
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

// inReach says that there is a machine where the host's was, or that nobody
// asks any more.
func (m *monitor) inReach() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost != nil {
		m.lost.Stop()
		m.lost = nil
	}
}

// expired is called when the host's machine has been out of reach for the
// resume time.
func (m *monitor) expired() {
	m.mu.Lock()
	away := m.lost != nil // it may just have come back
	if away {
		m.lost.Reset(m.resume)
	}
	m.mu.Unlock()
	if away && m.gone != nil {
		m.gone()
	}
}

// reason says to clients why the host is away.
func (m *monitor) reason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return publicReason(m.err)
	case m.sock == nil && m.silent == 0: // it has just ended
		return reasonEnded
	}
	return reasonSilent
}

// suspect has the monitor look at the host now.
func (m *monitor) suspect() { signal(m.poke) }

// alive reports whether the host is there, as far as can be seen at once. A host that
// is shutting down ends one connection after the other, and may answer here when it has
// ended that of a client: so its answer counts only if its own end does not follow.
func (m *monitor) alive(ctx context.Context) bool {
	turn, there := m.present()
	m.suspect()
	if !there {
		return false
	}
	silent := time.NewTimer(aliveWithin)
	defer silent.Stop()
	select {
	case <-ctx.Done():
		return true
	case <-silent.C:
		_, there = m.present()
		return there
	case <-turn:
	}
	settled := time.NewTimer(endWithin)
	defer settled.Stop()
	for turn, there = m.present(); there; turn, there = m.present() {
		select {
		case <-ctx.Done():
			return true
		case <-settled.C:
			return true
		case <-turn: // more life is no news
		}
	}
	return false
}

// present reports whether the host is connected to, and returns what is closed when it
// shows life, or goes away.
func (m *monitor) present() (turn <-chan struct{}, there bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turn, m.sock != nil
}

// errNotYet is why the host is away when a host-agent has just started.
var errNotYet = errors.New("not connected to the host yet")

// readLoop takes what the host says. All of it is life.
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

// answered takes an answer of the host.
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

// ended notes the end of a connection as soon as it is there.
func (m *monitor) ended(sock hostSocket) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sock == sock {
		m.sock, m.asked, m.silent = nil, time.Time{}, 0
		m.turnLocked()
	}
}
