package hostagent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker"
	"ahprelay/broker/notice"
	"ahprelay/broker/remember"
	"ahprelay/broker/waiting"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// waitingMethod is a request that the host-agent answers: see package broker/waiting.
const waitingMethod = "relay/waitingKeys"

// Times and bounds of waiting items.
const (
	waitingRoom  = 8                // most unread announcements of new items; one announcement is enough for all items
	waitingAgain = 2 * time.Second  // time until the second round after an announcement, because a relay may learn of the item later
	waitingEvery = 5 * time.Minute  // interval between rounds without an announcement
	waitingAsk   = 5 * time.Second  // time for a relay's answer
	deliveryTime = 30 * time.Second // longest time for giving an item to the host
	mostBatches  = 64               // most batches in a round
	mostSkew     = time.Hour        // most difference between the clocks of host and device
)

// waitingItems delivers the items that people have left while the host was away.
type waitingItems struct {
	agent *Agent
	book  *waitbook.Book // the journal and the keys; nil if the host accepts no items
	conn  *broker.Conn   // the connection to NATS; set by run
}

// newWaitingItems opens the book. Items need a state directory for the journal, and a host
// process that all connections share.
func newWaitingItems(a *Agent) (*waitingItems, error) {
	w := &waitingItems{agent: a}
	if a.cfg.StateDir == "" || len(a.cfg.Upstream.Command) > 0 {
		return w, nil
	}
	var err error
	if w.book, err = waitbook.Open(a.cfg.StateDir, a.tenant, a.host, w.sealed()); err == nil {
		w.book.Fence = a.run.fence
	}
	return w, err
}

// sealed reports whether the host is sealed. A sealed host lets relays order and refuse
// items, and does not trust any other statement of theirs about items.
func (w *waitingItems) sealed() bool { return w.agent.cfg.Sealed != nil }

// clock returns the time by which items expire: the relay's, so that devices with a wrong
// clock do no harm. At a sealed host it is the host's own, because a relay's false time would
// extend items, or remove entries from the journal.
func (w *waitingItems) clock(relay time.Time) time.Time {
	if w.sealed() {
		return time.Now()
	}
	return relay
}

// books returns the book, or nil if the host takes no items.
func (w *waitingItems) books() *waitbook.Book {
	if w == nil {
		return nil
	}
	return w.book
}

// run delivers items until ctx ends: at the start, after each login, when a relay
// announces an item, and every waitingEvery.
func (w *waitingItems) run(ctx context.Context, conn *broker.Conn) {
	if w.book == nil {
		return
	}
	w.conn = conn
	news := make(chan *nats.Msg, waitingRoom)
	cancel, err := conn.Subscribe(waiting.NewsSubject(w.agent.tenant, w.agent.host), news)
	if err != nil {
		w.agent.cfg.Log.Error("waiting items unavailable", "error", err)
		return
	}
	defer cancel()
	login := conn.NextLogin()
	for failures := 0; ; {
		pause := waitingEvery
		if err := w.round(ctx); err != nil {
			failures++
			pause = broker.RetryDelay(failures)
			w.agent.cfg.Log.Debug("waiting items not delivered yet", "error", err)
		} else {
			failures = 0
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-login:
			login = conn.NextLogin()
		case <-news:
			if w.round(ctx) == nil { // the relay that answered may not have had the item yet
				select {
				case <-ctx.Done():
				case <-time.After(waitingAgain):
				case <-news:
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (w *waitingItems) ask(ctx context.Context, r *waiting.Request) (answer waiting.Answer, err error) {
	r.Instance = w.agent.instance
	data, err := json.Marshal(r)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, waitingAsk)
	defer cancel()
	body, err := w.conn.Request(ctx, waiting.Subject(w.agent.tenant, w.agent.host), data)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	return answer, err
}

// batch returns the next items from a relay. It checks that the relay is trusted.
func (w *waitingItems) batch(ctx context.Context, without []string) (b waiting.Batch, err error) {
	nonce := rand.Text()
	answer, err := w.ask(ctx, &waiting.Request{Op: waiting.List, Nonce: nonce, Devices: w.book.Devices(), Without: without})
	if err != nil {
		return b, err
	}
	if answer.Batch == nil {
		return b, errors.New("answer without items")
	}
	if err := w.agent.verify(answer.Batch, auth.WaitingItems); err != nil {
		return b, err
	}
	if b, err = waiting.ReadBatch(answer.Batch.Body); err != nil {
		return b, err
	}
	if b.Tenant != w.agent.tenant || b.Host != w.agent.host || b.Instance != w.agent.instance || b.Nonce != nonce {
		return b, errors.New("items for a different request")
	}
	b.Now = w.clock(b.Now)
	return b, nil
}

// round delivers all items in order, and reports the results. It stops at the first error
// of a relay, the journal or the connection to the host. If the host answers but does not
// accept an item, only the later items of the same author wait.
func (w *waitingItems) round(ctx context.Context) error {
	stuck := map[string]error{} // by author
	for range mostBatches {
		b, err := w.batch(ctx, someOf(stuck))
		if err != nil {
			return err
		}
		if err := w.reportAll(ctx, b.Now); err != nil {
			return err
		}
		progress := false
		for i := range b.Items {
			o := &b.Items[i]
			if stuck[o.Subject] != nil {
				continue
			}
			progress = true
			err := w.take(ctx, o, b.Now)
			var held *heldError
			switch {
			case errors.As(err, &held) && ctx.Err() == nil:
				stuck[o.Subject] = err
			case err != nil:
				return err
			}
		}
		if b.More && progress {
			continue
		}
		for _, err := range stuck {
			return err
		}
		return w.book.Drop(b.Removed) // removed devices are needed until their items are refused
	}
	return nil
}

// someOf returns as many of the authors as fit into a request.
func someOf(stuck map[string]error) (authors []string) {
	size := 0
	for author := range stuck {
		if size += 6*len(author) + 3; size > waiting.MaxWithout { // in JSON, at most
			break
		}
		authors = append(authors, author)
	}
	return authors
}

func (w *waitingItems) reportAll(ctx context.Context, now time.Time) error {
	for _, id := range w.book.Unreported() {
		e, _ := w.book.Entry(id)
		if err := w.report(ctx, e, now); err != nil {
			return err
		}
	}
	return nil
}

func (w *waitingItems) tell(ctx context.Context, r waiting.Result) error {
	if w.sealed() {
		r.Why = "" // Why may quote the host, which the relay must not read
	}
	_, err := w.ask(ctx, &waiting.Request{Op: waiting.Report, Result: &r})
	return err
}

// report reports an entry's result to a relay, and records in the journal that it did.
func (w *waitingItems) report(ctx context.Context, e waitbook.Entry, now time.Time) error {
	if err := w.tell(ctx, *e.Result); err != nil {
		return err
	}
	e.Reported = true
	return w.book.Write(e.Result.ID, e, now)
}

// take delivers an item, or refuses it, and reports the result. After an error, the item is
// tried again.
func (w *waitingItems) take(ctx context.Context, o *waiting.Offer, now time.Time) error {
	e, had := w.book.Entry(o.Item.ID)
	if had && e.Stage == waitbook.Over {
		return w.report(ctx, e, now)
	}
	d := &delivering{items: w, offer: o, now: now, had: had, entry: e}
	result := d.judge()
	if result.State == "" {
		var err error
		if result, err = d.deliver(ctx); err != nil {
			return err
		}
	}
	result.ID, result.Version = o.Item.ID, o.Item.Version
	if had {
		result.Version = e.Version
	}
	if d.forged {
		return w.tell(ctx, result) // without an entry: a relay's forgeries must not fill the journal
	}
	over := waitbook.Entry{Stage: waitbook.Over, Version: result.Version, Expires: o.Item.Expires, Result: &result}
	if err := w.book.Write(o.Item.ID, over, now); err != nil {
		return err
	}
	w.finished(d, &result)
	return w.report(ctx, over, now)
}

// finished writes the audit line of an item, and notifies the author unless the item was delivered
// or cancelled.
func (w *waitingItems) finished(d *delivering, r *waiting.Result) {
	w.agent.cfg.Log.Info(auditMessage, "event", "waiting", "conn", d.open.ID, "subject", d.open.Subject, "token", d.open.Token,
		"session", shorten(d.content.Session), "kind", string(d.content.Kind), "result", string(r.State))
	if r.State == waiting.Done || r.State == waiting.Cancelled {
		return
	}
	e := notice.Event{
		ID: notice.ID(d.content.Session, "waiting "+r.ID), Kind: notice.Undelivered, Session: d.content.Session, Chat: d.content.Chat,
		Text: r.Why, Only: d.open.Subject, At: time.Now().UTC(),
	}
	e.Fit()
	w.agent.ledger.Add(e)
}

// A delivering is the delivery of one item.
type delivering struct {
	items   *waitingItems
	offer   *waiting.Offer
	now     time.Time // see waitingItems.clock
	open    routing.Open
	policy  gate.Policy // of the author
	content waiting.Content
	forged  bool // the host is sealed, and none of its devices has left the item

	had   bool // an earlier attempt to deliver the item has begun
	entry waitbook.Entry
	looks bool // only find out the result, because an earlier attempt may have sent the item
}

// A heldError reports that the host answers but does not accept an item.
type heldError struct{ error }

func (e *heldError) Unwrap() error { return e.error }

// errLost reports that the connection to the host ended after an item was sent and before
// it was confirmed.
var errLost = errors.New("the host left before it confirmed a waiting item")

// author finds the keys of the device that has signed the item, and what its person may
// do. known is false if there is no such device. out is the reason if the author has lost
// all authority: stated by the relay or, at a sealed host, found in the device's grants.
func (d *delivering) author() (keys sealed.Identity, known bool, out string) {
	o, a := d.offer, d.items.agent
	d.open = routing.Open{Subject: o.Subject, Token: o.Token, DeviceID: o.Device, Device: o.Name, Access: o.Access, Channels: o.Channels, Methods: o.Methods}
	if !d.items.sealed() {
		keys, known = d.items.book.Signer(o.Subject, o.Device, o.Item.Device)
		d.policy, out = a.policy(d.open), o.Out
	} else {
		var device waitbook.Device
		if device, keys, known = d.items.book.Vouched(o.Item.Device); !known {
			return keys, false, ""
		}
		authority, err := d.items.admit(&device)
		if err != nil {
			d.open = routing.Open{Subject: device.Subject, Token: device.ID}
			return keys, true, err.Error()
		}
		d.open, d.policy = a.seals.authority(authority, device.Vouch.Wanted)
		d.open.Device, out = device.Name, o.Out
	}
	d.open.ID = "waiting-" + o.Item.ID[:12]
	return keys, known, out
}

// admit judges the grants of a sealed host's device as of now.
func (w *waitingItems) admit(d *waitbook.Device) (*sealed.Authority, error) {
	identity, err := sealed.ReadIdentity(d.Vouch.Identity)
	if err != nil {
		return nil, err
	}
	s := w.agent.seals
	return sealed.Admit(s.vault, s.secret.Public(), identity, d.Vouch.Grants, time.Now())
}

// readers returns those of a person's devices that may read new items. A sealed host leaves
// out devices that it no longer admits.
func (w *waitingItems) readers(devices []waitbook.Device) (list []WaitingDevice) {
	for i := range devices {
		d := &devices[i]
		if d.Vouch != nil {
			if _, err := w.admit(d); err != nil {
				continue
			}
		}
		list = append(list, WaitingDevice{d.Keys, d.Name})
	}
	return list
}

func (d *delivering) idOf(session string) string {
	if d.items.sealed() {
		return waiting.BlindID(d.items.book.Blind(d.open.Subject), session)
	}
	return remember.IDOf(session)
}

// judge reads the item's content. If the item must not be delivered, judge returns its
// result. Each reason has its branch.
func (d *delivering) judge() waiting.Result {
	o, a := d.offer, d.items.agent
	keys, known, out := d.author()
	d.forged = d.items.sealed() && !known
	if known {
		secret := d.items.book.Secret()
		content, err := secret.OpenLetter(&o.Item.Letter, o.Item.Head(a.tenant, a.host, d.open.Subject), keys.Verifier, sealed.HostFingerprint(secret.Public()))
		if err == nil {
			d.content, err = waiting.ReadContent(content, o.Item.Session, d.idOf)
		}
		d.forged = d.items.sealed() && errors.Is(err, sealed.ErrLetter)
		switch {
		case err != nil && d.had:
			return unknown()
		case err != nil:
			return waiting.Because(waiting.Refused, err.Error())
		}
	}
	bar, blocked := a.blocked.has(d.open)
	switch {
	case d.had && known:
		d.looks = blocked || out != "" || o.Item.Cancelled || o.Item.Version != d.entry.Version || d.now.UnixMilli() >= o.Item.Expires ||
			d.mayLeave().State != ""
		return waiting.Result{}
	case d.had:
		return waiting.Because(waiting.Unknown, "the device that left it has been removed")
	case out != "":
		return waiting.Because(waiting.Refused, out)
	case !known:
		return waiting.Because(waiting.Refused, "the host does not know the device that left it; open the host on that device once")
	case o.Item.Expires > d.now.Add(waiting.MaxLife+mostSkew).UnixMilli():
		d.forged = d.items.sealed() // a correct relay refuses such an item
		return waiting.Because(waiting.Refused, "its time is too far away")
	case o.Item.Cancelled:
		return waiting.Result{State: waiting.Cancelled}
	case d.now.UnixMilli() >= o.Item.Expires:
		return waiting.Because(waiting.Late, "its time was over")
	case blocked:
		return waiting.Because(waiting.Refused, bar)
	}
	return d.mayLeave()
}

// mayLeave returns a refusal if the author's level is too low, or the author may not use
// the session. The gates on the connection to the host judge all other permissions.
func (d *delivering) mayLeave() waiting.Result {
	needs, word, method := auth.AccessTalk, "talk", "dispatchAction"
	switch d.content.Kind {
	case waiting.Session:
		needs, word, method = auth.AccessWrite, "operate", "createSession"
	case waiting.Approve:
		needs, word = auth.AccessApprove, "approve"
	}
	switch {
	case !d.policy.Access.Includes(needs):
		return waiting.Because(waiting.Refused, fmt.Sprintf("this needs the level %s, which you do not have here any more", word))
	case !d.policy.Takes(d.content.Session, method):
		return waiting.Because(waiting.Refused, "you may not use this session")
	}
	return waiting.Result{}
}

// deliver gives the item to the host, on a connection with the author's authority.
func (d *delivering) deliver(ctx context.Context) (waiting.Result, error) {
	a := d.items.agent
	ctx, cancel := context.WithTimeout(ctx, deliveryTime)
	defer cancel()
	sock, err := a.dialFor(ctx, &caller{tenant: a.tenant, subject: d.open.Subject, access: string(d.policy.Access), conn: d.open.ID})
	if err != nil {
		return waiting.Result{}, err
	}
	defer sock.Close("delivered")
	stop := context.AfterFunc(ctx, func() { sock.Close("host timeout") })
	defer stop()
	e := &errand{speaker: newSpeaker(sock, "waiting"), content: &d.content, had: d.had, entry: d.entry, looks: d.looks}
	chain := gate.Chain{View: a.process().Conn(d.open.Subject)}
	if g := d.policy.Gate(chain.View); g != nil {
		chain.Gates = append(chain.Gates, g)
	}
	e.gates = &chain
	e.mark = func(stage waitbook.Stage) error {
		return d.items.book.Write(d.offer.Item.ID, waitbook.Entry{Stage: stage, Version: d.offer.Item.Version, Expires: d.offer.Item.Expires}, d.now)
	}
	result, err := e.run()
	if err == nil && result.State == waiting.Done && e.answers != (givenKey{}) {
		a.given.note(e.answers, giver{d.open.Subject, d.open.Device}, 0)
	}
	if err != nil && e.greeted {
		err = &heldError{err}
	}
	return result, err
}

// answersWaiting answers a client's request for the keys of waiting items. It returns false
// if env is a different message.
func (w *hostWriter) answersWaiting(env *ahp.Envelope) (isRequest bool, err error) {
	c := w.c
	book := c.agent.waiting.books()
	if book == nil || env.Kind != ahp.Request || string(env.Method) != waitingMethod {
		return false, nil
	}
	return true, w.answerHere(func() []byte { return c.waitingKeys(book, env) })
}

// WaitingKeys is the answer to a request for the keys of waiting items.
type WaitingKeys struct {
	Tenant  string          `json:"tenant"`
	Subject string          `json:"subject"`
	Host    string          `json:"host"`            // the host's public key
	Devices []WaitingDevice `json:"devices"`         // the person's devices, including the device that sent the request
	Blind   []byte          `json:"blind,omitempty"` // at a sealed host: the key for IDs of sessions, see waiting.BlindID
}

// A WaitingDevice is a device of the person.
type WaitingDevice struct {
	Keys string `json:"keys"`
	Name string `json:"name"`
}

// waitingKeys stores a device's keys, and returns the answer to its request.
func (c *hostConn) waitingKeys(book *waitbook.Book, env *ahp.Envelope) []byte {
	m := [...]ahp.Member{{Name: "keys"}, {Name: "name"}}
	if ahp.Members(env.Params, m[:]) != nil {
		return ahp.AppendError(nil, env.ID, ahp.CodeInvalidParams, "params: want {channel, keys, name}", nil)
	}
	d := waitbook.Device{Subject: c.open.Subject, ID: c.open.DeviceID, At: time.Now().UTC()}
	seal := c.conn.seal
	if seal != nil && !seal.guest {
		d.ID, d.Vouch = seal.identity.Fingerprint().String(), &waitbook.Vouch{Identity: seal.identity.Bytes(), Grants: seal.browser.Grants, Wanted: seal.browser.Wanted}
	}
	if d.ID == "" || !c.policy.Speaks() {
		return ahp.AppendError(nil, env.ID, ahp.CodePermissionDenied, "only a signed-in device with the level talk leaves items", nil)
	}
	d.Keys, _ = ahp.Text(m[0].Raw)
	d.Name, _ = ahp.Text(m[1].Raw)
	if _, err := waitbook.ReadKeys(d.Keys); err != nil {
		return ahp.AppendError(nil, env.ID, ahp.CodeInvalidParams, err.Error(), nil)
	}
	devices, err := book.Enter(d)
	if err != nil {
		c.log.Warn("keys of a device not kept", "error", err)
		return ahp.AppendError(nil, env.ID, ahp.CodeInternalError, "the host-agent could not keep these keys", nil)
	}
	c.auditOften(connectsAtOnce, "waitingKeys", "")
	given := WaitingKeys{Tenant: c.agent.tenant, Subject: c.open.Subject, Host: book.PublicKey(), Devices: c.agent.waiting.readers(devices)}
	if seal != nil {
		given.Blind = book.Blind(d.Subject)
	}
	result, _ := json.Marshal(given) // all fields can be encoded
	return ahp.AppendResult(nil, env.ID, result)
}
