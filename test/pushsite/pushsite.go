// Package pushsite is a push service for tests, with one browser that has subscribed.
package pushsite

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"ahprelay/gateway/notify"
)

// A Service is a push service (RFC 8030) with one browser. It accepts a message only if
// the sender has the key to which the browser has subscribed (RFC 8292). It decrypts
// the message as the browser would (RFC 8291).
type Service struct {
	*httptest.Server
	t      testing.TB
	key    *ecdh.PrivateKey
	secret []byte
	Pushed chan Pushed

	subscribed chan struct{} // closed by Subscribed
	relayKey   string        // readable after that
}

// A Pushed is a message that the service has received.
type Pushed struct {
	notify.Message
	Topic, Urgency string
	Text           []byte    // the message as the browser decrypts it
	At             time.Time // time of arrival
}

// patience limits the wait for a message.
const patience = 2 * time.Minute

// New starts a push service, which stops when the test ends.
func New(t testing.TB) *Service {
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{t: t, key: key, secret: make([]byte, 16), Pushed: make(chan Pushed, 10000), subscribed: make(chan struct{})}
	rand.Read(s.secret)
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// Subscribed sets the sender's key to which the browser has subscribed. It must be called
// once. Messages that arrive earlier wait for it.
func (s *Service) Subscribed(key string) {
	s.relayKey = key
	close(s.subscribed)
}

// RelayKey returns the key given to Subscribed.
func (s *Service) RelayKey() string {
	<-s.subscribed
	return s.relayKey
}

// Target returns the browser's subscription as a notification target.
func (s *Service) Target(details bool) notify.Target {
	encode := base64.RawURLEncoding.EncodeToString
	return notify.Target{
		Kind: notify.WebPush, URL: s.URL + "/push/1", Details: details,
		Keys: &notify.PushKeys{P256dh: encode(s.key.PublicKey().Bytes()), Auth: encode(s.secret)},
	}
}

func (s *Service) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the test has ended; before that, the sender would try again
	}
	select {
	case <-s.subscribed:
	case <-r.Context().Done():
		return // the sender has given up
	}
	err = s.checkSender(r.Header.Get("Authorization"))
	var text []byte
	if err == nil {
		text, err = Decrypt(s.key, s.secret, body)
	}
	p := Pushed{At: time.Now(), Text: text, Topic: r.Header.Get("Topic"), Urgency: r.Header.Get("Urgency")}
	if err == nil {
		err = json.Unmarshal(text, &p.Message)
	}
	if err != nil || r.Header.Get("TTL") == "" || len(body) > 4096+100 {
		s.t.Errorf("push of %d bytes: %v", len(body), err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.Pushed <- p
	w.WriteHeader(http.StatusCreated)
}

// checkSender checks that the header proves the key to which the browser has
// subscribed.
func (s *Service) checkSender(header string) error {
	fields := map[string]string{}
	for part := range strings.SplitSeq(strings.TrimPrefix(header, "vapid "), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[name] = value
	}
	if fields["k"] != s.relayKey {
		return errors.New("the push is signed with a different key from that of the subscription")
	}
	point, err := base64.RawURLEncoding.DecodeString(fields["k"])
	if err != nil {
		return err
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return err
	}
	_, err = jwt.Parse(fields["t"], func(*jwt.Token) (any, error) { return key, nil },
		jwt.WithAudience(s.URL), jwt.WithExpirationRequired(), jwt.WithValidMethods([]string{"ES256"}))
	return err
}

// Decrypt decrypts a message with one record (RFC 8291) by a browser's key and secret.
func Decrypt(own *ecdh.PrivateKey, secret, body []byte) ([]byte, error) {
	if len(body) < 86 || body[20] != 65 {
		return nil, errors.New("no header of aes128gcm")
	}
	salt, from, record := body[:16], body[21:86], body[86:]
	sender, err := ecdh.P256().NewPublicKey(from)
	if err != nil {
		return nil, err
	}
	shared, err := own.ECDH(sender)
	if err != nil {
		return nil, err
	}
	derive := func(secret, salt []byte, info string, n int) []byte {
		out, e := hkdf.Key(sha256.New, secret, salt, info, n)
		err = errors.Join(err, e)
		return out
	}
	ikm := derive(shared, secret, "WebPush: info\x00"+string(own.PublicKey().Bytes())+string(from), 32)
	block, e := aes.NewCipher(derive(ikm, salt, "Content-Encoding: aes128gcm\x00", 16))
	if err = errors.Join(err, e); err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	text, err := gcm.Open(nil, derive(ikm, salt, "Content-Encoding: nonce\x00", 12), record, nil)
	if err != nil {
		return nil, err
	}
	text = bytes.TrimRight(text, "\x00")
	if len(text) == 0 || text[len(text)-1] != 2 {
		return nil, errors.New("the record is not the last")
	}
	return text[:len(text)-1], nil
}

// Next waits for the next message and returns it.
func (s *Service) Next() Pushed {
	s.t.Helper()
	select {
	case p := <-s.Pushed:
		return p
	case <-time.After(patience):
		s.t.Fatal("nothing was pushed")
	}
	return Pushed{}
}
