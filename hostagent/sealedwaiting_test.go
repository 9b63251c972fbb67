package hostagent

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/remember"
	"ahprelay/broker/waiting"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/coalesce"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
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
	a := &Agent{
		access: &access{tenant: "default", host: "laptop"}, audits: coalesce.New(auditEvery),
		cfg: Config{StateDir: t.TempDir(), Sealed: &Sealing{}, Log: slog.New(slog.DiscardHandler)},
	}
	a.seals = &seals{agent: a, vault: v}
	s := &sealedShelf{T: t}
	if s.items, err = newWaitingItems(a); err != nil {
		t.Fatal(err)
	}
	a.waiting = s.items
	made := newDevices(t, 2)
	s.paired, s.writer = made[0], made[1]
	s.pair(s.paired, level)
	s.enter(s.writer, &waitbook.Vouch{Identity: s.paired.Identity().Bytes()})
	return s
}

// pair adds a device of ada to the vault.
func (s *sealedShelf) pair(d *sealed.Device, level auth.Access) {
	id, v := d.Identity(), s.items.agent.seals.vault
	v.state.Devices = append(v.state.Devices, vaultDevice{Subject: "ada", Level: level, Seen: time.Now(), End: time.Now().Add(time.Hour), Key: id.Key[:], Verifier: id.Verifier[:]})
}

func newDevices(t *testing.T, n int) []*sealed.Device {
	t.Helper()
	made := make([]*sealed.Device, n)
	for i := range made {
		made[i] = newDevice(t)
	}
	return made
}

// enter stores a device's keys for items.
func (s *sealedShelf) enter(d *sealed.Device, vouch *waitbook.Vouch) {
	s.Helper()
	device := waitbook.Device{Subject: "ada", ID: d.Identity().Fingerprint().String(), Keys: keysText(d), Vouch: vouch}
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
	d.result = d.judge()
	return d
}

// devices requests the keys of ada's devices inside the sealed connection of a device, which
// gives its own. It returns the keys in the answer.
func (s *sealedShelf) devices(paired, writer *sealed.Device) (keys []string) {
	s.Helper()
	c := &hostConn{agent: s.items.agent, open: routing.Open{Subject: "ada"}, policy: gate.NewPolicy(auth.AccessTalk, nil, nil, true)}
	c.conn = &clientLine{seal: &sealing{identity: paired.Identity()}}
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"relay/waitingKeys","params":{"keys":%q,"name":"phone"}}`, keysText(writer))
	env, err := ahp.Peek(message)
	if err != nil {
		s.Fatal(err)
	}
	var answer struct{ Result WaitingKeys }
	if err := json.Unmarshal(c.waitingKeys(s.items.books(), &env), &answer); err != nil {
		s.Fatal(err)
	}
	for _, d := range answer.Result.Devices {
		keys = append(keys, d.Keys)
	}
	return keys
}

func keysText(d *sealed.Device) string {
	return base64.RawURLEncoding.EncodeToString(d.Identity().Bytes())
}

// TestRemovedDeviceReadsNoNewItems removes one of ada's two devices from a sealed host. The other
// must no longer get its keys, because it would seal its items to the removed device too.
func TestRemovedDeviceReadsNoNewItems(t *testing.T) {
	t.Parallel()
	s := newSealedShelf(t, auth.AccessTalk)
	lost := newDevices(t, 2)
	s.pair(lost[0], auth.AccessTalk)
	if got := s.devices(lost[0], lost[1]); !slices.Equal(got, []string{keysText(s.writer), keysText(lost[1])}) {
		t.Fatalf("the host has the keys %v; want those of both devices", got)
	}
	if err := s.items.agent.seals.remove(lost[0].Identity().Fingerprint().String(), true); err != nil {
		t.Fatal(err)
	}
	if got := s.devices(s.paired, s.writer); !slices.Equal(got, []string{keysText(s.writer)}) {
		t.Errorf("after the removal, a device gets the keys %v; want its own alone", got)
	}
}

// TestSealedHostJudgesItemsItself offers items to a sealed host. The relay's claims about
// the author give no authority and take none. What no device of the host has signed is
// refused, and leaves no entry in the journal.
func TestSealedHostJudgesItemsItself(t *testing.T) {
	t.Parallel()
	s := newSealedShelf(t, auth.AccessTalk)
	made := newDevices(t, 2)
	stranger, named := made[0], made[1]
	s.enter(named, nil)
	if d := s.judge(s.writer, nil, nil); d.result.State != "" || d.open.Subject != "ada" || d.policy.Access != auth.AccessTalk || d.content.Text != "hello" {
		t.Errorf("a valid item is decided as %+v, with the grant %+v; want it undecided, with ada's grant of level talk and the text hello", d.result, d.open)
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
			t.Errorf("%s: the item is decided as %+v, forged %v; want it refused as forged", what, d.result, d.forged)
		}
	}
	begun := s.judge(stranger, nil, nil)
	begun.had, begun.forged = true, false
	if result := begun.judge(); result.State != waiting.Unknown || !begun.forged {
		t.Errorf("a stranger's item in place of a begun one is %+v, forged %v; want it unknown and forged, so its entry stays", result, begun.forged)
	}
	if d := s.judge(s.writer, func(i *waiting.Item) { i.Expires = time.Now().Add(-time.Minute).UnixMilli() }, nil); d.result.State != waiting.Late {
		t.Errorf("an item whose time is over is decided as %+v; want late", d.result)
	}
	if d := s.judge(s.writer, func(i *waiting.Item) { i.Session = remember.IDOf("demo:/1") }, nil); d.result.State != waiting.Refused {
		t.Errorf("an item with a session ID that relays can compute is decided as %+v; want it refused", d.result)
	}
	if d := newSealedShelf(t, auth.AccessRead); d.judge(d.writer, nil, func(o *waiting.Offer) { o.Access = "admin" }).result.State != waiting.Refused {
		t.Error("an item that needs a higher level is accepted because the relay states one; want it refused by the device's own grant")
	}
	if err := s.items.agent.seals.remove(s.paired.Identity().Fingerprint().String(), true); err != nil {
		t.Fatal(err)
	}
	if d := s.judge(s.writer, nil, func(o *waiting.Offer) { o.Access = "admin" }); d.result.State != waiting.Refused {
		t.Errorf("an item of a removed device is decided as %+v; want it refused", d.result)
	}
}
