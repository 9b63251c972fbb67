package sealed

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// A fakeRegistry is a host's list of devices and removals.
type fakeRegistry struct {
	holders map[Fingerprint]Holder
	removed map[string]bool
}

func (r *fakeRegistry) Holder(f Fingerprint) (Holder, bool) {
	h, ok := r.holders[f]
	return h, ok
}

func (r *fakeRegistry) Removed(what string) bool { return r.removed[what] }

// A grantCase is a change to a chain of two grants: the owner's device grants to ada's, and ada's
// device grants to her phone. Admits says whether the host must still admit the phone.
type grantCase struct {
	name   string
	change func(w *grantWorld)
	admits bool
}

// A grantWorld holds everything from which a test makes a chain of grants and checks it.
type grantWorld struct {
	host              Key
	owner, ada, phone *Device
	first, second     Grant
	firstBy, secondBy *Device
	firstAt, secondAt Key
	known             *fakeRegistry
	presents          Identity
	edit              func(chain []string) []string
	now               time.Time
}

func newGrantWorld(t *testing.T) *grantWorld {
	t.Helper()
	c := newCast(t)
	phone, err := NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	w := &grantWorld{
		host: c.host.Public(), owner: c.device, ada: c.other, phone: phone, firstBy: c.device, secondBy: c.other,
		known: &fakeRegistry{removed: map[string]bool{}}, presents: phone.Identity(), edit: func(chain []string) []string { return chain }, now: now,
	}
	w.firstAt, w.secondAt = w.host, w.host
	w.known.holders = map[Fingerprint]Holder{c.device.Identity().Fingerprint(): {Identity: c.device.Identity(), Subject: "owner", Level: auth.AccessAdmin, End: now.Add(20 * 24 * time.Hour)}}
	w.first = Grant{Device: w.ada.Identity(), Subject: "ada", Level: auth.AccessApprove, From: now.Add(-time.Hour), End: now.Add(10 * 24 * time.Hour), Serial: strings.Repeat("A", FingerprintSize)}
	w.second = Grant{Device: phone.Identity(), Subject: "ada", Level: auth.AccessTalk, Channels: []string{"ahp-session:/x"}, From: now.Add(-time.Minute), End: now.Add(time.Hour), Serial: strings.Repeat("Q", FingerprintSize)}
	return w
}

var grantCases = []grantCase{
	{"as it should be", func(*grantWorld) {}, true},
	{"a grant for a different host", func(w *grantWorld) { w.secondAt[0] ^= 1 }, false},
	{"a grant that a different device has signed", func(w *grantWorld) { w.secondBy = w.owner }, false},
	{"a grant by the device itself", func(w *grantWorld) { w.secondBy = w.phone }, false},
	{"a first grant by no holder", func(w *grantWorld) { w.firstBy = w.phone }, false},
	{"a higher level than the issuer's", func(w *grantWorld) { w.second.Level = auth.AccessWrite }, false},
	{"a different person, not by an owner", func(w *grantWorld) { w.second.Subject = "bob" }, false},
	{"a different person, by an owner", func(w *grantWorld) { w.first.Level, w.second.Subject = auth.AccessAdmin, "bob" }, true},
	{"a removed owner", func(w *grantWorld) { w.known.removed[w.owner.Identity().Fingerprint().String()] = true }, false},
	{"a removed issuer", func(w *grantWorld) { w.known.removed[w.ada.Identity().Fingerprint().String()] = true }, false},
	{"a removed device", func(w *grantWorld) { w.known.removed[w.phone.Identity().Fingerprint().String()] = true }, false},
	{"a removed serial", func(w *grantWorld) { w.known.removed[w.first.Serial] = true }, false},
	{"after the end of the last grant", func(w *grantWorld) { w.now = w.second.End }, false},
	{"after the end of the first grant", func(w *grantWorld) {
		w.first.End, w.second.End = w.now.Add(time.Minute), w.now.Add(time.Hour)
		w.now = w.now.Add(2 * time.Minute)
	}, false},
	{"after the end of the holder", func(w *grantWorld) {
		f := w.owner.Identity().Fingerprint()
		h := w.known.holders[f]
		h.End = w.now
		w.known.holders[f] = h
	}, false},
	{"a grant from the future", func(w *grantWorld) { w.second.From, w.second.End = w.now.Add(time.Hour), w.now.Add(2*time.Hour) }, false},
	{"without the first grant", func(w *grantWorld) { w.edit = func(c []string) []string { return c[1:] } }, false},
	{"without the last grant", func(w *grantWorld) { w.edit = func(c []string) []string { return c[:1] } }, false},
	{"without grants", func(w *grantWorld) { w.edit = func([]string) []string { return nil } }, false},
	{"in the wrong order", func(w *grantWorld) { w.edit = func(c []string) []string { return []string{c[1], c[0]} } }, false},
	{"with five grants", func(w *grantWorld) {
		w.edit = func(c []string) []string { return []string{c[0], c[1], c[1], c[1], c[1]} }
	}, false},
	{"with a changed body", func(w *grantWorld) {
		w.edit = func(c []string) []string { return []string{c[0], strings.Replace(c[1], c[1][20:21], "A", 1)} }
	}, false},
	{"with the other grant's signature", func(w *grantWorld) {
		w.edit = func(c []string) []string {
			body, _, _ := strings.Cut(c[1], ".")
			_, signature, _ := strings.Cut(c[0], ".")
			return []string{c[0], body + "." + signature}
		}
	}, false},
	{"presented by a different device", func(w *grantWorld) { w.presents = w.owner.Identity() }, false},
	{"presented with a different signing key", func(w *grantWorld) { w.presents.Verifier = w.owner.Identity().Verifier }, false},
	{"the issuer's grant, presented by the issuer's key with the phone's signing key", func(w *grantWorld) {
		w.presents = Identity{w.ada.Identity().Key, w.phone.Identity().Verifier}
		w.edit = func(c []string) []string { return c[:1] }
	}, false},
}

func TestOnlyWholeChainsOfGrantsAdmit(t *testing.T) {
	for _, c := range grantCases {
		t.Run(c.name, func(t *testing.T) {
			w := newGrantWorld(t)
			c.change(w)
			first, err1 := w.firstBy.SignGrant(w.firstAt, w.first)
			second, err2 := w.secondBy.SignGrant(w.secondAt, w.second)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			a, err := Admit(w.known, w.host, w.presents, w.edit([]string{first, second}), w.now)
			if (err == nil) != c.admits {
				t.Fatalf("admitted as %+v, %v; want %v", a, err, c.admits)
			}
			if err == nil && (a.Level != auth.AccessTalk || len(a.Limits) != 3 || !a.End.Equal(w.second.End) || a.Subject != w.second.Subject || !a.Rests(w.first.Serial) || !a.Rests(w.owner.Identity().Fingerprint().String())) {
				t.Errorf("the chain admits as %+v; want the second grant's authority, resting on both", a)
			}
		})
	}
}

// TestGrantsAreBounded makes a device sign grants that hosts would refuse. SignGrant must return an
// error for each.
func TestGrantsAreBounded(t *testing.T) {
	for name, change := range map[string]func(g *Grant){
		"31 days":                         func(g *Grant) { g.End = g.From.Add(MaxLife + time.Second) },
		"no time":                         func(g *Grant) { g.End = g.From },
		"unknown level":                   func(g *Grant) { g.Level = "root" },
		"no subject":                      func(g *Grant) { g.Subject = "" },
		"control character":               func(g *Grant) { g.Subject = "ada\n" },
		"unsorted channels":               func(g *Grant) { g.Channels = []string{"b", "a"} },
		"too many channels":               func(g *Grant) { g.Channels = make([]string, maxChannels+1) },
		"long channels":                   func(g *Grant) { g.Channels = []string{strings.Repeat("x", maxGrant)} },
		"short serial":                    func(g *Grant) { g.Serial = "x" },
		"serial that no removal can name": func(g *Grant) { g.Serial = strings.Repeat("!", FingerprintSize) },
		"key not on a curve":              func(g *Grant) { g.Device.Verifier[5] ^= 1 },
	} {
		w := newGrantWorld(t)
		change(&w.first)
		if _, err := w.owner.SignGrant(w.host, w.first); err == nil {
			t.Errorf("a grant with %s is signed; want an error", name)
		}
	}
}
