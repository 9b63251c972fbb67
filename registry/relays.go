package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"

	"github.com/nats-io/nats.go"
)

// Subjects of relays among themselves. Host-agents have no rights there.
//
//	ahp.relays.v1.news                     relayNews for all
//	ahp.relays.v1.to.<instance>.news       relayNews for one
//	ahp.relays.v1.to.<instance>.lease      a request that another relay is to decide
const (
	relayRoot = "ahp.relays.v1."
	newsAll   = relayRoot + "news"
)

func relaySubject(instance, what string) string { return relayRoot + "to." + instance + "." + what }

// Times and bounds of relays among themselves.
const (
	beatEvery    = time.Second      // each relay says this often that it is there
	silentAfter  = 4 * time.Second  // without a beat a relay is not there
	formerAfter  = 2 * time.Second  // … if its successor says so
	refreshEvery = 30 * time.Second // each says all it knows, for what got lost
	joinTimeout  = 2 * time.Second  // for the first answer of relays that are there
	joinRetry    = 100 * time.Millisecond

	revokedEvery = 5 * time.Second // a relay that knows others is told all revocations this often at most

	goneFor = time.Minute // for this long host-agents are told of a crashed relay
	maxGone = 64          // crashed relays that they are told of

	newsRoom  = 8192 // messages of other relays that wait; what is lost comes again
	newsHosts = 100  // hosts in one message, each less than 6 KiB
)

// newsVersion is raised when older relays would misunderstand what is said.
const newsVersion = 1

// A relayNews is what relays say to each other. Every message is a sign of life.
type relayNews struct {
	Version int       `json:"v"`
	From    string    `json:"from"`              // instance
	Started time.Time `json:"started"`           // when that was; the eldest decides about leases
	Cluster bool      `json:"cluster,omitempty"` // its NATS server is in the same process, and one of a cluster
	Former  []string  `json:"former,omitempty"`  // instances that it has succeeded after a crash
	Bye     bool      `json:"bye,omitempty"`     // it ends, in good order

	Revoked       []auth.Revocation `json:"revoked,omitempty"`       // one that is new, or all that it knows, in several messages
	RevokedDigest string            `json:"revokedDigest,omitempty"` // of all that it knows; with signs of life only

	Hosts []hostState `json:"hosts,omitempty"` // some that have changed, or all that it knows, in several messages
	Last  bool        `json:"last,omitempty"`  // the last of several messages
}

// A peer is another relay.
type peer struct {
	started time.Time
	cluster bool
	former  []string
	heard   time.Time
	revoked time.Time // when it was last told all revocations
	doubted bool      // it did not answer; until it is heard again
}

// A relayClock is what a relay does in time.
type relayClock struct {
	turned, beaten, refreshed, tidied time.Time
	listening                         time.Time // since when nothing that was said can have been missed, as far as known
}

// join subscribes to what other relays say, and takes what they know already.
func (r *Registry) join(ctx context.Context) (unsubscribe func(), err error) {
	var cancels []func()
	unsubscribe = func() {
		for _, cancel := range cancels {
			cancel()
		}
	}
	own := relaySubject(r.cfg.Instance, "news")
	for _, subject := range []string{own, newsAll} {
		cancel, err := r.cfg.Conn.Subscribe(subject, r.in)
		if err != nil {
			unsubscribe()
			return nil, err
		}
		cancels = append(cancels, cancel)
	}
	if err := r.ask(ctx, own); err != nil {
		unsubscribe()
		return nil, err
	}
	return unsubscribe, nil
}

// ask has the relays that are there say what they know, and awaits the first
// that does. A relay answers the first message of another with all it knows.
func (r *Registry) ask(ctx context.Context, own string) error {
	hello, err := json.Marshal(r.news(time.Now()))
	if err != nil {
		return err
	}
	timeout := time.NewTimer(joinTimeout)
	defer timeout.Stop()
	again := time.NewTicker(joinRetry) // interest of relays that are there takes its time to spread
	defer again.Stop()
	for asked := false; ; {
		if !asked {
			if err := r.cfg.Conn.PublishRequest(newsAll, own, hello); err != nil {
				return fmt.Errorf("ask other relays: %w", err)
			}
			asked = true
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout.C:
			r.cfg.Log.Warn("other relays do not say what hosts they know; starting without")
			return nil
		case <-again.C:
			asked = false
		case msg := <-r.in:
			if noResponders(msg) && !r.cfg.Linked {
				return nil
			}
			if news, ok := r.receive(msg); ok && news.Last {
				return nil
			}
		}
	}
}

// noResponders reports whether a message is the NATS server's, to say that
// nobody has subscribed to the subject of a request.
func noResponders(msg *nats.Msg) bool {
	return len(msg.Data) == 0 && msg.Header.Get("Status") == "503"
}

// run hears other relays, and tells them and subscribers, until ctx ends.
func (r *Registry) run(ctx context.Context) {
	turn := time.NewTicker(min(beatEvery, r.cfg.LeaseTTL/sweepShare))
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			r.publish(newsAll, relayNews{Bye: true})
			return
		case msg := <-r.in:
			r.receive(msg)
		case <-r.wake:
		case <-r.revoke:
			r.endRevoked(time.Now())
		case <-turn.C:
			r.turn(time.Now())
		}
		r.tellChanges()
	}
}

// receive takes a message of another relay.
func (r *Registry) receive(msg *nats.Msg) (news relayNews, ok bool) {
	if noResponders(msg) {
		return news, false
	}
	err := json.Unmarshal(msg.Data, &news)
	if err == nil {
		err = ahp.CheckName("from", news.From)
	}
	if err != nil {
		r.cfg.Log.Warn("message of another relay", "subject", msg.Subject, "error", err)
		return news, false
	}
	if news.Version != newsVersion || news.From == r.cfg.Instance {
		return news, false // one that is much newer tells older ones nothing
	}
	if news.Bye {
		r.mu.Lock()
		delete(r.peers, news.From)
		r.mu.Unlock()
		r.cfg.Log.Info("another relay has stopped", "relay", news.From)
		return news, true
	}
	r.cfg.Revocations.hear(news.Revoked)
	own := relaySubject(news.From, "news")
	met := r.meet(news, time.Now())
	if r.knowsOthers(news, time.Now()) {
		r.tellRevocations(own)
	}
	if met {
		r.cfg.Log.Info("another relay is there", "relay", news.From)
		r.tellAll(own)
	}
	r.hear(news.Hosts)
	return news, true
}

// meet notes that a relay was heard, and reports whether it is new.
func (r *Registry) meet(news relayNews, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.peers[news.From]
	met := p == nil
	if met {
		p = &peer{started: news.Started}
		r.peers[news.From] = p
		delete(r.gone, news.From)
		r.joined = true
	}
	p.heard, p.doubted, p.cluster, p.former = now, false, news.Cluster, news.Former
	return met
}

// knowsOthers reports whether a relay must be told all revocations: it was
// just met, or it knows others than this one.
func (r *Registry) knowsOthers(news relayNews, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.peers[news.From]
	met := p.revoked.IsZero()
	differs := news.RevokedDigest != "" && news.RevokedDigest != r.cfg.Revocations.Digest()
	if !met && (!differs || now.Sub(p.revoked) < revokedEvery) {
		return false
	}
	p.revoked = now
	return true
}

// turn does what is due.
func (r *Registry) turn(now time.Time) {
	c := &r.clock
	// After a pause of this process, or of its connection, silence says nothing.
	paused := !c.turned.IsZero() && now.Sub(c.turned) > silentAfter/2
	c.turned = now
	if paused || !r.cfg.Conn.Connected() {
		c.listening = now
		r.forgive(now)
	}
	if now.Sub(c.beaten) >= beatEvery {
		c.beaten = now
		r.publish(newsAll, relayNews{RevokedDigest: r.cfg.Revocations.Digest()})
	}
	if now.Sub(c.refreshed) >= refreshEvery && r.company() {
		c.refreshed = now
		r.tellAll(newsAll)
	}
	r.missPeers(now)
	if now.Sub(c.listening) > r.cfg.LeaseTTL/2 {
		r.sweep(now)
	}
	if now.Sub(c.tidied) >= tidyEvery {
		c.tidied = now
		r.tidyTenants(now)
	}
}

// forgive gives all relays their full time to be heard.
func (r *Registry) forgive(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.peers {
		p.heard = now
	}
}

// missPeers notes which relays are no more.
func (r *Registry) missPeers(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.formerLocked(now)
	for instance, p := range r.peers {
		former = append(former, p.former...)
		if now.Sub(p.heard) <= silentAfter {
			continue
		}
		delete(r.peers, instance)
		if r.cfg.Cluster && p.cluster {
			r.loseLocked(instance, "silent", now)
		} else {
			r.cfg.Log.Info("another relay is not heard any more", "relay", instance)
		}
	}
	for _, instance := range former {
		p := r.peers[instance]
		if p != nil && now.Sub(p.heard) > formerAfter {
			delete(r.peers, instance)
			p = nil
		}
		// One that is heard is not gone: its data directory was copied.
		if p == nil && now.Sub(r.started) > formerAfter && instance != r.cfg.Instance {
			r.loseLocked(instance, "its successor has started", now)
		}
	}
	maps.DeleteFunc(r.gone, func(_ string, since time.Time) bool { return now.Sub(since) > 2*goneFor })
}

// loseLocked notes that a relay is gone for good.
func (r *Registry) loseLocked(instance, why string, now time.Time) {
	if _, known := r.gone[instance]; known {
		return
	}
	r.gone[instance] = now
	r.cfg.Log.Warn("a relay is gone: host-agents are told to close its connections", "relay", instance, "because", why)
}

// formerLocked returns the instances that this one has succeeded, while that
// is news.
func (r *Registry) formerLocked(now time.Time) []string {
	if now.Sub(r.started) > goneFor {
		return nil
	}
	return slices.Clone(r.cfg.Former)
}

// goneRelays returns the relays that host-agents are to be told of.
func (r *Registry) goneRelays() []string {
	now := time.Now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	var names []string
	for instance, since := range r.gone {
		if now.Sub(since) < goneFor {
			names = append(names, instance)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return r.gone[b].Compare(r.gone[a]) })
	return names[:min(len(names), maxGone)]
}

// decider returns the relay that decides about leases, so that of two requests
// at the same time one comes first: the eldest that is heard. It returns "" if
// that is this one. Relays that do not see each other may decide about the same
// host; when they do again, one of the two leases is dropped.
func (r *Registry) decider() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	eldest, started, name := "", r.started, r.cfg.Instance
	for instance, p := range r.peers {
		if p.doubted {
			continue
		}
		if cmp.Or(p.started.Compare(started), strings.Compare(instance, name)) < 0 {
			eldest, started, name = instance, p.started, instance
		}
	}
	return eldest
}

// doubt has others decide until the relay is heard again.
func (r *Registry) doubt(instance string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.peers[instance]; p != nil {
		p.doubted = true
	}
}

// company reports whether another relay is there.
func (r *Registry) company() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.peers) > 0
}

// Degraded says what a relay of a cluster lacks, "" if nothing.
func (r *Registry) Degraded() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case !r.cfg.Cluster || len(r.peers) > 0:
		return ""
	case r.joined:
		return "the other relays of the cluster are not heard any more"
	}
	return "no other relay of the cluster was heard yet"
}

// news returns the head of a message.
func (r *Registry) news(now time.Time) relayNews {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return relayNews{
		Version: newsVersion, From: r.cfg.Instance, Started: r.started, Cluster: r.cfg.Cluster, Former: r.formerLocked(now),
	}
}

// publish fills in the head of a message and sends it. One that gets lost is no
// harm: beats and refreshEvery make up for it.
func (r *Registry) publish(subject string, what relayNews) {
	news := r.news(time.Now())
	news.Bye, news.Hosts, news.Last = what.Bye, what.Hosts, what.Last
	news.Revoked, news.RevokedDigest = what.Revoked, what.RevokedDigest
	body, err := json.Marshal(news)
	if err == nil {
		err = r.cfg.Conn.Publish(subject, body)
	}
	if err != nil && r.cfg.Conn.Connected() { // else the broker.Conn's own events tell
		r.cfg.Log.Warn("message to other relays", "error", err)
	}
}

// tellRelays tells all relays of a change.
func (r *Registry) tellRelays(s hostState) { r.publish(newsAll, relayNews{Hosts: []hostState{s}}) }

// tellRevoked tells all relays of a revocation.
func (r *Registry) tellRevoked(rev auth.Revocation) {
	r.publish(newsAll, relayNews{Revoked: []auth.Revocation{rev}})
}

// tellRevocations says all that is revoked.
func (r *Registry) tellRevocations(subject string) {
	for list := range slices.Chunk(r.cfg.Revocations.List(), newsRevocations) {
		r.publish(subject, relayNews{Revoked: list})
	}
}

// tellAll says all that is known of hosts.
func (r *Registry) tellAll(subject string) {
	states := r.states()
	for len(states) > newsHosts {
		r.publish(subject, relayNews{Hosts: states[:newsHosts]})
		states = states[newsHosts:]
	}
	r.publish(subject, relayNews{Hosts: states, Last: true})
}

// check reports a state that no relay would tell.
func (s *hostState) check() error {
	tenant, host, _ := strings.Cut(s.Key, ".")
	if err := errors.Join(ahp.CheckName("tenant", tenant), ahp.CheckName("host", host)); err != nil {
		return err
	}
	if err := s.Users.check(); err != nil {
		return err
	}
	if s.Lease.held() {
		return errors.Join(ahp.CheckName("instance", s.Lease.Instance), s.Lease.Presence.check())
	}
	return nil
}
