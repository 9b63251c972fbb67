package hostagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"ahprelay/ahp"
	"ahprelay/broker"
)

// Times of the monitor.
const (
	pingEvery   = 5 * time.Second
	pingTimeout = 5 * time.Second
	aliveWithin = 500 * time.Millisecond // an answer that decides between two close codes
	retryFirst  = 100 * time.Millisecond
	retryMost   = 2 * time.Second
)

// A monitor keeps a connection of its own to the host, which is how a
// host-agent knows that the host is up when no client is there. It asks what
// every host answers at any time: ping; and which AHP versions the host
// speaks, by an initialize that offers none, so that it is no client.
type monitor struct {
	upstream string // as messages name it
	dial     dialFunc
	log      *slog.Logger
	resume   time.Duration                                    // how long the host may be silent before it counts as gone
	gone     func()                                           // called when it does, and again as long as it does; nil: nobody cares
	changed  func(state broker.State, reason, version string) // must not block
	poke     chan struct{}                                    // holds one: do not wait, look now

	mu      sync.Mutex // guards the fields below
	sock    hostSocket // nil while the host is away
	why     string     // it is away
	version string     // of the host's software, or of the AHP that it speaks
	last    uint64     // id of the last request
	waiting map[uint64]chan ahp.Envelope

	asked  time.Time   // when the ping was sent that has no answer; zero: there is none
	silent *time.Timer // ends the host's time; nil while it is there
}

func newMonitor(upstream string, dial dialFunc, resume time.Duration, log *slog.Logger, changed func(state broker.State, reason, version string)) *monitor {
	return &monitor{
		upstream: upstream, dial: dial, resume: resume, log: log, changed: changed,
		poke: make(chan struct{}, 1), why: notYet,
		waiting: map[uint64]chan ahp.Envelope{},
	}
}

// run watches the host until ctx ends.
func (m *monitor) run(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = retryFirst, retryMost
	defer m.back()
	for ctx.Err() == nil {
		err := m.watch(ctx, wait.Reset)
		if ctx.Err() != nil {
			return
		}
		m.away(err)
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.poke:
		}
		timer.Stop()
	}
}

// watch connects to the host and pings it until that fails.
func (m *monitor) watch(ctx context.Context, up func()) error {
	sock, err := m.dial(ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer sock.Close("host-agent stops watching")
	stop := context.AfterFunc(ctx, func() { sock.Close("host-agent stopped") })
	defer stop()
	m.mu.Lock()
	m.sock = sock
	m.mu.Unlock()
	ended := make(chan error, 1)
	wg.Go(func() { ended <- m.readLoop(sock) })
	if err := m.identify(ctx, ended); err != nil {
		return err
	}
	up()
	m.online()
	for {
		timer := time.NewTimer(pingEvery)
		select {
		case err := <-ended:
			timer.Stop()
			return fmt.Errorf("upstream %s: connection lost: %w", m.upstream, err)
		case <-timer.C:
		case <-m.poke:
			timer.Stop()
		}
		if err := m.ping(ctx); err != nil {
			return err
		}
	}
}

// ping asks whether the host is there, and remembers since when it has not
// said so.
func (m *monitor) ping(ctx context.Context) error {
	m.mu.Lock()
	m.asked = time.Now()
	m.mu.Unlock()
	if _, err := m.request(ctx, "ping", `{"channel":"ahp-root://"}`, pingTimeout); err != nil {
		return err
	}
	m.back()
	return nil
}

// identify finds out whether there is an AHP host at the other end.
func (m *monitor) identify(ctx context.Context, ended <-chan error) error {
	answer, err := m.request(ctx, "ping", `{"channel":"ahp-root://"}`, pingTimeout)
	if err != nil {
		select {
		case err = <-ended:
		default:
		}
		return fmt.Errorf("upstream %s does not speak AHP, or hangs: %w", m.upstream, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("upstream %s speaks JSON-RPC but answers an AHP ping with an error: is this an AHP host's port?", m.upstream)
	}
	answer, err = m.request(ctx, "initialize",
		`{"channel":"ahp-root://","clientId":"ahp-host-agent","protocolVersions":[]}`, pingTimeout)
	if err == nil {
		m.learnVersions(answer)
	}
	return nil
}

// learnVersions takes what the host says when no version suits it.
func (m *monitor) learnVersions(answer ahp.Envelope) {
	data := [...]ahp.Member{{Name: "data"}}
	versions := [...]ahp.Member{{Name: "supportedVersions"}}
	if answer.Error == nil || ahp.Members(answer.Error, data[:]) != nil || data[0].Raw == nil ||
		ahp.Members(data[0].Raw, versions[:]) != nil {
		return
	}
	if list, ok := ahp.Texts(versions[0].Raw); ok && len(list) > 0 {
		m.setVersion("AHP " + list[0])
	}
}

// learn takes what a host told a client about itself.
func (m *monitor) learn(result ahp.InitializeResult) {
	info := [...]ahp.Member{{Name: "name"}, {Name: "version"}}
	version := "AHP " + result.ProtocolVersion
	if result.ServerInfo != nil && ahp.Members(result.ServerInfo, info[:]) == nil {
		name, _ := ahp.Text(info[0].Raw)
		number, _ := ahp.Text(info[1].Raw)
		if name != "" {
			version = name + " " + number + ", " + version
		}
	}
	m.setVersion(version)
}

func (m *monitor) setVersion(version string) {
	m.mu.Lock()
	changed := version != m.version
	m.version = version
	online := m.why == ""
	m.mu.Unlock()
	if changed && online {
		m.changed(broker.Online, "", version)
	}
}

// back says that the host is there, or that nobody asks any more.
func (m *monitor) back() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = time.Time{}
	if m.silent != nil {
		m.silent.Stop()
		m.silent = nil
	}
}

// expired is called when the host has not answered for the resume time.
func (m *monitor) expired() {
	m.mu.Lock()
	away := m.silent != nil // it may just have come back
	if away {
		m.silent.Reset(m.resume)
	}
	m.mu.Unlock()
	if away && m.gone != nil {
		m.gone()
	}
}

func (m *monitor) online() {
	m.back()
	m.mu.Lock()
	m.why = ""
	version := m.version
	m.mu.Unlock()
	m.log.Info("host is up", "upstream", m.upstream, "version", version)
	m.changed(broker.Online, "", version)
}

func (m *monitor) away(err error) {
	m.mu.Lock()
	news := m.sock != nil || m.why != err.Error()
	m.sock = nil
	m.why = err.Error()
	if m.silent == nil {
		if m.asked.IsZero() {
			m.asked = time.Now()
		}
		m.silent = time.AfterFunc(time.Until(m.asked.Add(m.resume)), m.expired)
	}
	version := m.version
	for id, answer := range m.waiting {
		close(answer)
		delete(m.waiting, id)
	}
	m.mu.Unlock()
	if news {
		m.log.Warn("host is away; trying again", "error", err)
		m.changed(broker.Offline, err.Error(), version)
	}
}

// reason says why the host is away.
func (m *monitor) reason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.why == "" {
		return "the host does not answer"
	}
	return m.why
}

// suspect has the monitor look at the host now.
func (m *monitor) suspect() { signal(m.poke) }

// alive reports whether the host answers.
func (m *monitor) alive(ctx context.Context) bool {
	_, err := m.request(ctx, "ping", `{"channel":"ahp-root://"}`, aliveWithin)
	if err != nil {
		m.suspect()
	}
	return err == nil
}

var errAway = errors.New("connection lost")

// request asks the host on the monitor's connection.
func (m *monitor) request(ctx context.Context, method, params string, timeout time.Duration) (ahp.Envelope, error) {
	m.mu.Lock()
	sock := m.sock
	if sock == nil {
		m.mu.Unlock()
		return ahp.Envelope{}, errAway
	}
	m.last++
	id := m.last
	answer := make(chan ahp.Envelope, 1)
	m.waiting[id] = answer
	err := sock.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params), false)
	m.mu.Unlock()
	if err != nil {
		return ahp.Envelope{}, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = fmt.Errorf("no answer to %s within %v", method, timeout)
	case env, ok := <-answer:
		if !ok {
			return env, errAway
		}
		return env, nil
	}
	m.mu.Lock()
	delete(m.waiting, id)
	m.mu.Unlock()
	return ahp.Envelope{}, err
}

// readLoop takes the host's answers.
func (m *monitor) readLoop(sock hostSocket) error {
	for {
		message, _, err := sock.Read()
		if err != nil {
			m.lost(sock)
			return err
		}
		env, err := ahp.Peek(bytes.Clone(message)) // whoever waits for it gets it later
		if err != nil || env.Kind != ahp.Response {
			continue
		}
		m.mu.Lock()
		for id, answer := range m.waiting {
			if ahp.SameID(fmt.Append(nil, id), env.ID) {
				answer <- env
				delete(m.waiting, id)
			}
		}
		m.mu.Unlock()
	}
}

// lost ends the requests that wait, as soon as the connection is gone.
func (m *monitor) lost(sock hostSocket) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sock == sock {
		m.sock = nil
	}
	for id, answer := range m.waiting {
		close(answer)
		delete(m.waiting, id)
	}
}
