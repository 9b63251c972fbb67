package sealed_test

import (
	"crypto/ecdh"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"ahprelay/internal/sealed"
	"ahprelay/test/pushsite"
)

func fromHex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPushesOfTheVectors opens the pushes in testdata/vectors.json as a browser does, verifies them
// as the device does, and opens the answer as the host does. Changed bytes must be refused.
func TestPushesOfTheVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Devices []struct{ Public, Verifier, Fingerprint string }
		Host    struct{ Key string }
		Pushes  []struct {
			Host, Verifier, Browser, P256dh, Auth, Push, Plaintext, Note, Event string
			Answer, Content, Result, Proof                                      string
		}
	}
	if err := json.Unmarshal(data, &v); err != nil || len(v.Pushes) != 2 || len(v.Devices) == 0 {
		t.Fatalf("the file has %d pushes, %v; want 2, with devices", len(v.Pushes), err)
	}
	host, err := sealed.ReadSecret(fromHex(t, v.Host.Key))
	if err != nil {
		t.Fatal(err)
	}
	device, err := sealed.ReadIdentity(append(fromHex(t, v.Devices[0].Public), fromHex(t, v.Devices[0].Verifier)...))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range v.Pushes {
		key, err := ecdh.P256().NewPrivateKey(fromHex(t, p.Browser))
		if err != nil {
			t.Fatal(err)
		}
		auth, err := base64.RawURLEncoding.DecodeString(p.Auth)
		if err != nil {
			t.Fatal(err)
		}
		push := fromHex(t, p.Push)
		if text, err := pushsite.Decrypt(key, auth, push); err != nil || string(text) != p.Plaintext || len(push) != 4096 {
			t.Errorf("the push has %d bytes and the text %q, %v; want 4096, and the vector's text", len(push), text, err)
		}
		push[len(push)-1] ^= 1
		if _, err := pushsite.Decrypt(key, auth, push); err == nil {
			t.Error("a changed push opens; want an error")
		}
		if encode := base64.RawURLEncoding.EncodeToString; encode(key.PublicKey().Bytes()) != p.P256dh {
			t.Errorf("the browser's computed key differs from the vector's %s; want the same", p.P256dh)
		}
		var signed struct {
			Sealed, Body string
			Signature    []byte
		}
		verifier := sealed.Verifier(fromHex(t, p.Verifier))
		if err := json.Unmarshal([]byte(p.Plaintext), &signed); err != nil || signed.Sealed != p.Host || signed.Body != p.Note || !verifier.IsNote(sealed.PushNote, []byte(signed.Body), signed.Signature) {
			t.Errorf("the push %s is not signed by the host: %v; want its signature", p.Plaintext, err)
		}
		if verifier.IsNote(sealed.PushNote, []byte(strings.Replace(signed.Body, p.Event, "x", 1)), signed.Signature) || verifier.IsNote(sealed.OutcomeNote, []byte(signed.Body), signed.Signature) {
			t.Error("the signature check accepts a changed note, or one for a different purpose; want false")
		}
		if p.Answer == "" {
			continue
		}
		letter, err := sealed.ReadReply([]byte(p.Answer))
		if err != nil || letter.Device != v.Devices[0].Fingerprint || letter.Event != p.Event {
			t.Fatalf("the answer is %+v, %v; want the first device's for the event", letter, err)
		}
		reply, err := letter.Open(host, device)
		content, _ := json.Marshal(reply)
		if err != nil || string(content) != p.Content {
			t.Errorf("the answer is %s, %v; want %s", content, err, p.Content)
		}
		letter.Event = "x"
		if _, err := letter.Open(host, device); err == nil {
			t.Error("an answer to a different event opens; want an error")
		}
		proof, err := base64.RawURLEncoding.DecodeString(p.Proof)
		if err != nil || !verifier.IsNote(sealed.OutcomeNote, sealed.OutcomeText([]byte(p.Answer), p.Result), proof) || verifier.IsNote(sealed.OutcomeNote, sealed.OutcomeText([]byte(p.Answer), "gone"), proof) {
			t.Errorf("the proof %s does not belong to the result %s: %v; want its signature", p.Proof, p.Result, err)
		}
	}
}
