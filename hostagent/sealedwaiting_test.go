package hostagent

import (
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/remember"
	"ahprelay/broker/waiting"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
)

// A sealedShelf is a sealed host with a device of ada, who leaves items.
type sealedShelf struct {
	*testing.T
	items  *waitingItems
	paired *sealed.Device // the device in the vault
	writer *sealed.Device // the keys for items that it has given inside a sealed connection
}

// A judged is a delivering with the host's judgement.
type judged struct {
	*delivering
	result waiting.Result
}

func newSealedShelf(t *testing.T, level auth.Access) *sealedShelf {
	t.Helper()
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{access: &access{tenant: "default", host: "laptop"}, cfg: Config{StateDir: t.TempDir(), Sealed: &Sealing{}, Log: slog.New(slog.DiscardHandler)}}
	a.seals = &seals{agent: a, vault: v}
	s := &sealedShelf{T: t}
	if s.items, err = newWaitingItems(a); err != nil {
		t.Fatal(err)
	}
	if s.paired, err = sealed.NewDevice(); err != nil {
		t.Fatal(err)
	}
	if s.writer, err = sealed.NewDevice(); err != nil {
		t.Fatal(err)
	}
	id := s.paired.Identity()
	v.state.Devices = append(v.state.Devices, vaultDevice{Subject: "ada", Level: level, Seen: time.Now(), End: time.Now().Add(time.Hour), Key: id.Key[:], Verifier: id.Verifier[:]})
	s.enter(s.writer, &waitbook.Vouch{Identity: id.Bytes()})
	return s
}

// enter stores a device's keys for items.
func (s *sealedShelf) enter(d *sealed.Device, vouch *waitbook.Vouch) {
	s.Helper()
	device := waitbook.Device{Subject: "ada", ID: d.Identity().Fingerprint().String(), Keys: base64.RawURLEncoding.EncodeToString(d.Identity().Bytes()), Vouch: vouch}
	if _, err := s.items.books().Enter(device); err != nil {
		s.Fatal(err)
	}
}

// judge offers a message of a device, as a relay does. change edits the item before the
// device signs it, and lie the offer afterwards.
func (s *sealedShelf) judge(by *sealed.Device, change func(*waiting.Item), lie func(*waiting.Offer)) *judged {
	s.Helper()
	content, err := json.Marshal(waiting.Content{Kind: waiting.Message, Session: "demo:/1", Turn: "turn-1", Text: "hello"})
	if err != nil {
		s.Fatal(err)
	}
	book := s.items.books()
	item := waiting.Item{
		ID: "00000000000000000000000000000001", Session: waiting.BlindID(book.Blind("ada"), "demo:/1"), Version: 1, Expires: time.Now().Add(time.Hour).UnixMilli(),
		Device: by.Identity().Fingerprint().String(),
	}
	if change != nil {
		change(&item)
	}
	key := book.Secret().Public()
	letter, err := by.SealLetter(item.Head("default", "laptop", "ada"), content, map[sealed.Fingerprint]sealed.Key{sealed.HostFingerprint(key): key})
	if err != nil {
		s.Fatal(err)
	}
	item.Letter = *letter
	offer := &waiting.Offer{Item: item, Subject: "relay-ada", Device: "relay-phone"}
	if lie != nil {
		lie(offer)
	}
	d := &judged{delivering: &delivering{items: s.items, offer: offer, now: s.items.clock(time.Now().Add(-48 * time.Hour))}}
	if d.result, err = d.judge(); err != nil {
		s.Fatal(err)
	}
	return d
}

// TestSealedHostJudgesItemsItself offers items to a sealed host. The relay's claims about
// the author give no authority and take none. What no device of the host has signed is
// refused, and leaves no entry in the journal.
func TestSealedHostJudgesItemsItself(t *testing.T) {
	t.Parallel()
	s := newSealedShelf(t, auth.AccessTalk)
	stranger, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	named, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	s.enter(named, nil)
	if d := s.judge(s.writer, nil, nil); d.result.State != "" || d.open.Subject != "ada" || d.policy.Access != auth.AccessTalk || d.content.Text != "hello" {
		t.Errorf("a true item is %+v as %+v", d.result, d.open)
	}
	for what, d := range map[string]*judged{
		"a stranger's item": s.judge(stranger, nil, nil),
		"an item of a device that only a relay has named": s.judge(named, nil, func(o *waiting.Offer) {
			o.Subject, o.Device, o.Access = "ada", named.Identity().Fingerprint().String(), "admin"
		}),
		"a later version":  s.judge(s.writer, nil, func(o *waiting.Offer) { o.Item.Version++ }),
		"a longer time":    s.judge(s.writer, nil, func(o *waiting.Offer) { o.Item.Expires++ }),
		"a different item": s.judge(s.writer, nil, func(o *waiting.Offer) { o.Item.ID = "00000000000000000000000000000002" }),
		"the stranger's signature": s.judge(s.writer, nil, func(o *waiting.Offer) {
			o.Item.Letter.Signature = s.judge(stranger, nil, nil).offer.Item.Letter.Signature
		}),
		"a time too far away": s.judge(s.writer, func(i *waiting.Item) { i.Expires = time.Now().Add(30 * 24 * time.Hour).UnixMilli() }, nil),
	} {
		if d.result.State != waiting.Refused || !d.forged {
			t.Errorf("%s is %+v, forged %v; want it refused as forged", what, d.result, d.forged)
		}
	}
	if d := s.judge(s.writer, func(i *waiting.Item) { i.Expires = time.Now().Add(-time.Minute).UnixMilli() }, nil); d.result.State != waiting.Late {
		t.Errorf("an item whose time is over is %+v, because the relay's clock is late", d.result)
	}
	if d := s.judge(s.writer, func(i *waiting.Item) { i.Session = remember.IDOf("demo:/1") }, nil); d.result.State != waiting.Refused {
		t.Errorf("an item whose session a relay can guess is %+v", d.result)
	}
	if d := newSealedShelf(t, auth.AccessRead); d.judge(d.writer, nil, func(o *waiting.Offer) { o.Access = "admin" }).result.State != waiting.Refused {
		t.Error("the relay raises a device's level")
	}
	if err := s.items.agent.seals.remove(s.paired.Identity().Fingerprint().String(), true); err != nil {
		t.Fatal(err)
	}
	if d := s.judge(s.writer, nil, func(o *waiting.Offer) { o.Access = "admin" }); d.result.State != waiting.Refused {
		t.Errorf("an item of a removed device is %+v", d.result)
	}
}
