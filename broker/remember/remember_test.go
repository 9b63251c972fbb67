package remember_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"ahprelay/broker/remember"
	"ahprelay/internal/sealed"
)

func newVault(t testing.TB) *remember.Vault {
	t.Helper()
	signer, err := remember.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	return &remember.Vault{Tenant: "acme", Host: "laptop", Key: []byte(strings.Repeat("k", remember.KeySize)), Signer: signer}
}

// TestRecordsCannotBeForged changes a sealed record, its vault or the verifier. Open must return
// ErrForged each time. Content above the bound must not be sealed.
func TestRecordsCannotBeForged(t *testing.T) {
	v := newVault(t)
	r := remember.Record{ID: remember.IDOf("s:/1"), Version: 7, Time: 1}
	if err := v.Seal(&r, []byte("the last answer")); err != nil {
		t.Fatal(err)
	}
	if got, err := v.Open(&v.Signer.PublicKey, &r); err != nil || string(got) != "the last answer" {
		t.Fatalf("Open = %q, %v; want the last answer", got, err)
	}
	other := newVault(t)
	for name, change := range map[string]func(r *remember.Record, v *remember.Vault, by **ecdsa.PublicKey){
		"version": func(r *remember.Record, _ *remember.Vault, _ **ecdsa.PublicKey) { r.Version++ },
		"time":    func(r *remember.Record, _ *remember.Vault, _ **ecdsa.PublicKey) { r.Time++ },
		"session": func(r *remember.Record, _ *remember.Vault, _ **ecdsa.PublicKey) { r.ID = remember.IDOf("s:/2") },
		"content": func(r *remember.Record, _ *remember.Vault, _ **ecdsa.PublicKey) { r.Data[20] ^= 1 },
		"host":    func(_ *remember.Record, v *remember.Vault, _ **ecdsa.PublicKey) { v.Host = "desk" },
		"tenant":  func(_ *remember.Record, v *remember.Vault, _ **ecdsa.PublicKey) { v.Tenant = "other" },
		"key": func(_ *remember.Record, v *remember.Vault, _ **ecdsa.PublicKey) {
			v.Key = []byte(strings.Repeat("x", 32))
		},
		"verifier": func(_ *remember.Record, _ *remember.Vault, by **ecdsa.PublicKey) { *by = &other.Signer.PublicKey },
	} {
		changed, with, by := r, *v, &v.Signer.PublicKey
		changed.Data = append([]byte(nil), r.Data...)
		change(&changed, &with, &by)
		if got, err := with.Open(by, &changed); !errors.Is(err, remember.ErrForged) {
			t.Errorf("with a changed %s: Open = %q, %v; want %v", name, got, err, remember.ErrForged)
		}
	}
	if err := v.Seal(&r, make([]byte, remember.MaxContent)); err != nil || r.Check() != nil {
		t.Errorf("Seal of the longest content: %v, %v; want no errors", err, r.Check())
	}
	if err := v.Seal(&r, make([]byte, remember.MaxContent+1)); err == nil {
		t.Error("Seal of content above the bound succeeded; want an error")
	}
}

// TestRecordKeysDiffer compares keys. Different sessions and different hosts must have different
// keys, and KeyID must not contain the key.
func TestRecordKeysDiffer(t *testing.T) {
	v := newVault(t)
	if string(v.RecordKey(remember.IDOf("s:/1"))) == string(v.RecordKey(remember.IDOf("s:/2"))) || strings.Contains(v.KeyID(), "6b6b") {
		t.Error("two records have equal keys, or a key's ID contains a part of the key; want neither")
	}
	w := *v
	w.Host = "desk"
	if string(v.RecordKey(remember.ListID)) == string(w.RecordKey(remember.ListID)) {
		t.Error("two hosts have equal keys for a record; want different keys")
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"instance":"a","op":"index"}`))
	f.Add([]byte(`{"instance":"a","op":"drop","id":"list"}`))
	f.Add([]byte(`{"instance":"a","op":"check","holders":[{"subject":"ada","at":"2026-11-22T06:12:01Z"}]}`))
	f.Add([]byte(`{"instance":"a","op":"put","record":{"id":"list","key":"0011223344556677","version":1,"time":1,"data":"AA==","signature":""}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := remember.ReadRequest(data)
		if err != nil {
			return
		}
		if r.Op == remember.Put && r.Record.Check() != nil || r.ID != "" && strings.ContainsAny(r.ID, ".*> ") && (r.Op == remember.Get || r.Op == remember.Drop) {
			t.Errorf("ReadRequest accepts %+v; want an error", r)
		}
		if again, err := json.Marshal(r); err != nil {
			t.Error(err)
		} else if _, err := remember.ReadRequest(again); err != nil && len(again) <= 512<<10 {
			t.Errorf("ReadRequest refuses the encoding %s of a valid request: %v", again, err)
		}
	})
}

// update is the flag that makes tests write new vectors.
var update = flag.Bool("update", false, "write testdata/vector.json")

// A vector is a sealed record with its keys, which tests of all implementations open.
type vector struct {
	Tenant, Host, Content string
	Session               string
	Key, RecordKey        []byte
	KeyID                 string
	Verifier              []byte
	Record                remember.Record
}

// TestRecordOpensAsInTheConsole opens the records in testdata, which the console's tests open too.
// Contents and keys must match.
func TestRecordOpensAsInTheConsole(t *testing.T) {
	for file, blind := range map[string]bool{"testdata/vector.json": false, "testdata/blind.json": true} {
		checkVector(t, file, blind)
	}
}

func checkVector(t *testing.T, file string, blind bool) {
	t.Helper()
	if *update {
		v := newVault(t)
		v.Blind = blind
		one := vector{Tenant: v.Tenant, Host: v.Host, Content: `{"session":"s:/1","state":{"turns":[]}}`, Session: "s:/1", Key: v.Key, KeyID: v.KeyID(), Verifier: v.Verifier()}
		if blind { // so long that it gets padding
			one.Content = `{"session":"s:/1","chat":"c:/1","state":{"title":"a title","turns":[]}}`
		}
		one.Record = remember.Record{ID: v.IDOf("s:/1"), Version: 1<<32 + 1, Time: 1763848800000}
		one.RecordKey = v.RecordKey(one.Record.ID)
		if err := v.Seal(&one.Record, []byte(one.Content)); err != nil {
			t.Fatal(err)
		}
		data, err := json.MarshalIndent(one, "", "\t")
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
	var one vector
	if err := json.Unmarshal(data, &one); err != nil {
		t.Fatal(err)
	}
	verifier, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), one.Verifier)
	if err != nil {
		t.Fatal(err)
	}
	v := remember.Vault{Tenant: one.Tenant, Host: one.Host, Key: one.Key, Blind: blind}
	got, err := v.Open(verifier, &one.Record)
	if err != nil || strings.TrimRight(string(got), " ") != one.Content || blind && len(got) != sealed.Padded(len(one.Content)) {
		t.Errorf("Open = %q, %v; want %s, padded: %v", got, err, one.Content, blind)
	}
	if id := v.IDOf(one.Session); id != one.Record.ID || one.Record.Blind != blind {
		t.Errorf("IDOf(%q) = %s, the vector's record is blind: %v; want %s, %v", one.Session, id, one.Record.Blind, one.Record.ID, blind)
	}
	if string(v.RecordKey(one.Record.ID)) != string(one.RecordKey) || v.KeyID() != one.KeyID {
		t.Error("RecordKey or KeyID differs from the vector's; want the same")
	}
}
