package waiting_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"ahprelay/broker/remember"
	"ahprelay/broker/waiting"
	"ahprelay/internal/sealed"
)

// update is the flag that makes the test write a new vector.
var update = flag.Bool("update", false, "write testdata/vector.json")

// A vector is a sealed item with its keys, which tests of all implementations open.
type vector struct {
	Tenant, Host, Subject string
	Content               string
	Secret                []byte // the host's key
	Verifier              []byte
	Digest                string // DigestOf("call-1", "shell", "ls", "Run ls")
	Item                  waiting.Item
}

func newItem(t testing.TB, device *sealed.Device, host sealed.Secret, content string) waiting.Item {
	t.Helper()
	i := waiting.Item{ID: "000102030405060708090a0b0c0d0e0f", Session: remember.IDOf("s:/1"), Version: 2, Expires: 1763848800000, Device: device.Identity().Fingerprint().String()}
	letter, err := device.SealLetter(i.Head("acme", "laptop", "ada"), []byte(content), map[sealed.Fingerprint]sealed.Key{
		sealed.HostFingerprint(host.Public()): host.Public(), device.Identity().Fingerprint(): device.Identity().Key,
	})
	if err != nil {
		t.Fatal(err)
	}
	i.Letter = *letter
	return i
}

// TestConsolesItemOpens opens the item in testdata, which the console's tests open too. Content and
// digest must match.
func TestConsolesItemOpens(t *testing.T) {
	const file = "testdata/vector.json"
	if *update {
		device, err := sealed.NewDevice()
		if err != nil {
			t.Fatal(err)
		}
		host, err := sealed.NewSecret()
		if err != nil {
			t.Fatal(err)
		}
		v := vector{Tenant: "acme", Host: "laptop", Subject: "ada", Content: `{"kind":"message","session":"s:/1","turn":"t1","text":"hello"}`, Secret: host.Private()}
		v.Item = newItem(t, device, host, v.Content)
		verifier := device.Identity().Verifier
		v.Verifier, v.Digest = verifier[:], waiting.DigestOf("call-1", "shell", "ls", "Run ls")
		data, err := json.MarshalIndent(v, "", "\t")
		if err == nil {
			err = os.WriteFile(file, append(data, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v vector
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	secret, err := sealed.ReadSecret(v.Secret)
	if err != nil {
		t.Fatal(err)
	}
	name := sealed.HostFingerprint(secret.Public())
	content, err := secret.OpenLetter(&v.Item.Letter, v.Item.Head(v.Tenant, v.Host, v.Subject), sealed.Verifier(v.Verifier), name)
	if err != nil || string(content) != v.Content {
		t.Errorf("OpenLetter = %s, %v; want %s", content, err, v.Content)
	}
	if got := waiting.DigestOf("call-1", "shell", "ls", "Run ls"); got != v.Digest {
		t.Errorf("DigestOf = %s; want %s", got, v.Digest)
	}
	if _, err := waiting.ReadContent(content, v.Item.Session, remember.IDOf); err != nil {
		t.Error(err)
	}
}

// TestItemsCannotBeForged changes an item, or the names and keys with which the host opens it.
// OpenLetter must fail for each change. The author's own device must be able to read the item;
// other devices must not.
func TestItemsCannotBeForged(t *testing.T) {
	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	other, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	host, err := sealed.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	name := sealed.HostFingerprint(host.Public())
	for what, change := range map[string]func(i *waiting.Item, tenant, subject *string, by *sealed.Verifier){
		"":          func(*waiting.Item, *string, *string, *sealed.Verifier) {},
		"version":   func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Version++ },
		"expiry":    func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Expires++ },
		"wake time": func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Wake++ },
		"cancelled": func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Cancelled = true },
		"session":   func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Session = remember.IDOf("s:/2") },
		"content":   func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Letter.Data[14] ^= 1 },
		"reader":    func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Letter.Boxes = i.Letter.Boxes[:1] },
		"box":       func(i *waiting.Item, _, _ *string, _ *sealed.Verifier) { i.Letter.Boxes[0].Key[40] ^= 1 },
		"tenant":    func(_ *waiting.Item, tenant, _ *string, _ *sealed.Verifier) { *tenant = "other" },
		"subject":   func(_ *waiting.Item, _, subject *string, _ *sealed.Verifier) { *subject = "eve" },
		"verifier":  func(_ *waiting.Item, _, _ *string, by *sealed.Verifier) { *by = other.Identity().Verifier },
	} {
		i := newItem(t, device, host, `{"text":"hello"}`)
		tenant, subject, by := "acme", "ada", device.Identity().Verifier
		change(&i, &tenant, &subject, &by)
		content, err := host.OpenLetter(&i.Letter, i.Head(tenant, "laptop", subject), by, name)
		if (err == nil) != (what == "") {
			t.Errorf("with a changed %s: OpenLetter = %s, %v; want an error unless nothing is changed", what, content, err)
		}
	}
	i := newItem(t, device, host, "x")
	if err := i.Check(); err != nil {
		t.Error(err)
	}
	if content, err := device.OpenLetter(&i.Letter, i.Head("acme", "laptop", "ada"), device.Identity().Verifier); err != nil || string(content) != "x" {
		t.Errorf("the author's device reads %s, %v; want x", content, err)
	}
	if _, err := other.OpenLetter(&i.Letter, i.Head("acme", "laptop", "ada"), device.Identity().Verifier); err == nil {
		t.Error("a device that is no recipient reads the letter; want an error")
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"instance":"a","op":"list","nonce":"n"}`))
	f.Add([]byte(`{"instance":"a","op":"report","result":{"id":"000102030405060708090a0b0c0d0e0f","version":1,"state":"done"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := waiting.ReadRequest(data)
		if err == nil && r.Op == waiting.Report && r.Result.Check() != nil {
			t.Errorf("ReadRequest accepts %+v; want an error", r)
		}
	})
}

func FuzzReadBatch(f *testing.F) {
	f.Add([]byte(`{"tenant":"t","items":[{"item":{"id":"000102030405060708090a0b0c0d0e0f"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := waiting.ReadBatch(data)
		if err != nil {
			return
		}
		for _, o := range b.Items {
			if o.Item.Check() != nil {
				t.Errorf("ReadBatch accepts the item %+v; want an error", o)
			}
		}
	})
}

func FuzzReadContent(f *testing.F) {
	f.Add([]byte(`{"kind":"message","session":"s:/1","turn":"t1","text":"hello"}`))
	f.Add([]byte(`{"kind":"approve","session":"s:/1","chat":"c","turn":"t","request":"r","input":"d"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := waiting.ReadContent(data, remember.IDOf("s:/1"), remember.IDOf)
		if err == nil && (c.Session != "s:/1" || len(c.Text) > waiting.MaxText) {
			t.Errorf("ReadContent accepts %+v; want an error", c)
		}
	})
}
