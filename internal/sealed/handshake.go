package sealed

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/flynn/noise"

	"ahprelay/auth"
)

// A Purpose states whether a handshake connects a known device or pairs a new one.
type Purpose byte

const (
	Connect Purpose = iota + 1 // the host knows the device, or the device which has issued its first grant
	Pair                       // the device proves that it knows a code, and the host then knows the device
)

// Sizes in a handshake, in bytes.
const (
	shortSize   = KeySize + tagSize // of each of the first two Noise messages
	thirdSize   = KeySize + 2*tagSize
	maxGreeting = 16 << 10
)

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherAESGCM, noise.HashSHA256)

// errTurn reports a handshake message in a wrong order.
var errTurn = lie("a handshake message out of turn")

// A Greeting is the payload of the third handshake message.
type Greeting struct {
	Name     string   `json:"name"`     // of the device, for display
	Verifier string   `json:"verifier"` // base64url
	Window   int      `json:"window"`   // seconds of silence, beyond the heartbeat interval, after which the host-agent may end the connection
	Grants   []string `json:"grants,omitempty"`

	// Level is the highest level the client asks for; "": the device's own.
	Level auth.Access `json:"level,omitempty"`

	// Viewer distinguishes viewers with one link, see NewViewer. Devices have none.
	Viewer string `json:"viewer,omitempty"`
}

// Times of a session's liveness.
const (
	Beat      = 15 * time.Second  // interval of heartbeats
	MinWindow = 15 * time.Second  // of a greeting
	MaxWindow = 615 * time.Second // of a greeting
)

// maxName bounds the name of a device, in bytes.
const maxName = 100

// check rejects a greeting which no correct client sends.
func (g *Greeting) check() (Verifier, error) {
	point, err := base64.RawURLEncoding.Strict().DecodeString(g.Verifier)
	switch {
	case err != nil || len(point) != VerifierSize:
		return Verifier{}, errors.New("greeting without a signing key")
	case len(g.Name) > maxName || !printable(g.Name):
		return Verifier{}, errors.New("greeting with a bad name")
	case g.Level != "" && !slices.Contains(auth.Levels(), g.Level):
		return Verifier{}, errors.New("greeting with an unknown level")
	case g.Viewer != "" && !isSerial(g.Viewer):
		return Verifier{}, errors.New("greeting of an unreadable viewer")
	case len(g.Grants) > maxChain:
		return Verifier{}, fmt.Errorf("greeting with %d grants; want at most %d", len(g.Grants), maxChain)
	}
	verifier := Verifier(point)
	return verifier, verifier.check()
}

// Admission is the content of a Welcome parcel.
type Admission struct {
	Subject string      `json:"subject"` // "" for a link's viewers
	Level   auth.Access `json:"level"`   // before the host owner's --allow
	End     int64       `json:"end"`     // Unix time; the device must connect again before
}

// viewerWelcome is the size of a Welcome for a link's viewers, which has no subject.
const viewerWelcome = 1 + 8

// Encode returns the body of the Welcome parcel.
func (a Admission) Encode() ([]byte, error) {
	if level := slices.Index(auth.Levels(), a.Level); a.Subject == "" && level >= 0 {
		return binary.BigEndian.AppendUint64([]byte{byte(level)}, uint64(a.End)), nil
	}
	return json.Marshal(a)
}

// ReadAdmission decodes the body of a Welcome parcel.
func ReadAdmission(body []byte) (a Admission, err error) {
	if len(body) != viewerWelcome {
		return a, json.Unmarshal(body, &a)
	}
	if int(body[0]) >= len(auth.Levels()) {
		return a, errors.New("welcome with an unknown level")
	}
	return Admission{Level: auth.Levels()[body[0]], End: int64(binary.BigEndian.Uint64(body[1:]))}, nil
}

func prologue(host string, purpose Purpose) []byte {
	b := append([]byte(label+"prologue\x00"), byte(purpose), byte(len(host)))
	return append(b, host...)
}

// pattern returns the Noise configuration for both ends.
func pattern(host string, purpose Purpose, code Code, own Secret, random io.Reader) noise.Config {
	secret := make([]byte, 32)
	if purpose == Pair {
		secret = code.secret()
	}
	public := own.Public()
	return noise.Config{
		CipherSuite: suite, Random: random, Pattern: noise.HandshakeXK, Prologue: prologue(host, purpose),
		PresharedKey: secret, PresharedKeyPlacement: 3,
		StaticKeypair: noise.DHKey{Private: own.Private(), Public: public[:]},
	}
}

func session(state *noise.HandshakeState, client bool, limit int, toHost, toClient *noise.CipherState) (*Session, error) {
	s := &Session{client: client, limit: limit, hash: state.ChannelBinding()}
	in, out := toHost, toClient
	if client {
		in, out = toClient, toHost
	}
	var err1, err2 error
	s.in, err1 = newHalf(in.UnsafeKey())
	s.out, err2 = newHalf(out.UnsafeKey())
	return s, errors.Join(err1, err2)
}

// An InitiatorConfig configures an Initiator.
type InitiatorConfig struct {
	Host     string       // the host's name
	HostKey  *Key         // nil in a pairing without the host's key, which the code then proves
	Expect   *Fingerprint // fingerprint of the host's key, from a QR code; nil: unknown
	Code     *Code        // nil: the device is paired already
	Device   *Device
	Greeting Greeting  // without Verifier
	Limit    int       // bytes of the longest message accepted from the host
	Random   io.Reader // nil: the system's random numbers
}

// An Initiator does the client's part of a handshake.
type Initiator struct {
	cfg     InitiatorConfig
	purpose Purpose
	state   *noise.HandshakeState // nil: the host's key is not known yet
	done    bool
}

// NewInitiator returns an Initiator and its first WebSocket message.
func NewInitiator(cfg InitiatorConfig) (*Initiator, []byte, error) {
	i := &Initiator{cfg: cfg, purpose: Connect}
	if cfg.Code != nil {
		i.purpose = Pair
	}
	if cfg.HostKey == nil {
		if cfg.Code == nil {
			return nil, nil, errors.New("the host's key is unknown: pair this device")
		}
		return i, []byte{byte(kindAskKey)}, nil
	}
	first, err := i.first()
	return i, first, err
}

// HostKey returns the host's key. The key is proved only after the session has decrypted
// a record.
func (i *Initiator) HostKey() Key { return *i.cfg.HostKey }

func (i *Initiator) first() ([]byte, error) {
	code := Code{}
	if i.cfg.Code != nil {
		code = *i.cfg.Code
	}
	cfg := pattern(i.cfg.Host, i.purpose, code, i.cfg.Device.secret, i.cfg.Random)
	cfg.Initiator, cfg.PeerStatic = true, i.cfg.HostKey[:]
	var err error
	if i.state, err = noise.NewHandshakeState(cfg); err != nil {
		return nil, err
	}
	message, _, _, err := i.state.WriteMessage([]byte{byte(kindFirst), byte(i.purpose)}, nil)
	return message, err
}

// Read handles a WebSocket message from the host-agent, and returns the answer. With the
// last answer it returns the session.
func (i *Initiator) Read(frame []byte) (answer []byte, s *Session, err error) {
	switch {
	case len(frame) == 0 || i.done:
		return nil, nil, errTurn
	case kind(frame[0]) == kindHostKey && i.state == nil && len(frame) == 1+KeySize:
		key := Key(frame[1:])
		if i.cfg.Expect != nil && *i.cfg.Expect != HostFingerprint(key) {
			return nil, nil, lie("the host's key is not that of the QR code")
		}
		i.cfg.HostKey = &key
		answer, err = i.first()
		return answer, nil, err
	case kind(frame[0]) != kindSecond || i.state == nil || len(frame) != 1+shortSize:
		return nil, nil, errTurn
	}
	i.done = true
	if _, _, _, err := i.state.ReadMessage(nil, frame[1:]); err != nil {
		return nil, nil, lie("the host's key is not the one that this device knows")
	}
	identity := i.cfg.Device.Identity()
	i.cfg.Greeting.Verifier = base64.RawURLEncoding.EncodeToString(identity.Verifier[:])
	greeting, err := json.Marshal(i.cfg.Greeting)
	if err != nil || len(greeting) > maxGreeting {
		return nil, nil, fmt.Errorf("greeting of %d bytes; want at most %d", len(greeting), maxGreeting)
	}
	answer, toHost, toClient, err := i.state.WriteMessage([]byte{byte(kindThird)}, greeting)
	if err != nil {
		return nil, nil, err
	}
	s, err = session(i.state, true, i.cfg.Limit, toHost, toClient)
	return answer, s, err
}

// A ResponderConfig configures a Responder.
type ResponderConfig struct {
	Host   string
	Secret Secret
	Code   func() (Code, bool) // returns the valid code, if there is one
	Limit  int                 // bytes of the longest message accepted from the client
	Random io.Reader           // nil: the system's random numbers
}

// A Responder does the host-agent's part of a handshake.
type Responder struct {
	cfg     ResponderConfig
	purpose Purpose
	asked   bool
	state   *noise.HandshakeState
	done    bool
}

// NewResponder returns a Responder.
func NewResponder(cfg ResponderConfig) *Responder { return &Responder{cfg: cfg} }

// An Arrival is a client after its handshake. It has proved its keys and, in a pairing,
// that it knows the code.
type Arrival struct {
	Session  *Session
	Purpose  Purpose
	Identity Identity
	Greeting Greeting
}

// Errors of a Responder.
var (
	// ErrNoCode reports a pairing although no code is valid.
	ErrNoCode = errors.New("no pairing code is valid now: make one at the host")
	// ErrWrongCode reports a pairing with a wrong code.
	ErrWrongCode = errors.New("wrong pairing code, or something between device and host has changed the pairing")
)

// Purpose returns the purpose stated by the client, or 0 before the first Noise message.
func (r *Responder) Purpose() Purpose { return r.purpose }

// Read handles a WebSocket message from the client, and returns the answer. After the
// last message it returns the client.
func (r *Responder) Read(frame []byte) (answer []byte, arrival *Arrival, err error) {
	switch {
	case len(frame) == 0 || r.done:
		return nil, nil, errTurn
	case kind(frame[0]) == kindAskKey && len(frame) == 1 && !r.asked && r.state == nil:
		r.asked = true
		key := r.cfg.Secret.Public()
		return append([]byte{byte(kindHostKey)}, key[:]...), nil, nil
	case kind(frame[0]) == kindFirst && len(frame) == 2+shortSize && r.state == nil:
		answer, err = r.second(Purpose(frame[1]), frame[2:])
		return answer, nil, err
	case kind(frame[0]) == kindThird && len(frame) >= 1+thirdSize && len(frame) <= 1+thirdSize+maxGreeting && r.state != nil:
		r.done = true
		arrival, err = r.third(frame[1:])
		return nil, arrival, err
	}
	return nil, nil, errTurn
}

// Third reports whether the next message must be the handshake's last one.
func (r *Responder) Third() bool { return r.state != nil && !r.done }

// second handles the first Noise message, and returns the second.
func (r *Responder) second(purpose Purpose, first []byte) ([]byte, error) {
	r.purpose = purpose
	var code Code
	switch purpose {
	case Connect:
	case Pair:
		var ok bool
		if code, ok = r.cfg.Code(); !ok {
			return nil, ErrNoCode
		}
	default:
		return nil, lie("an unknown purpose")
	}
	var err error
	if r.state, err = noise.NewHandshakeState(pattern(r.cfg.Host, purpose, code, r.cfg.Secret, r.cfg.Random)); err != nil {
		return nil, err
	}
	if _, _, _, err := r.state.ReadMessage(nil, first); err != nil {
		r.done = true
		return nil, lie("the device expects a different key of this host, or a different name")
	}
	answer, _, _, err := r.state.WriteMessage([]byte{byte(kindSecond)}, nil)
	return answer, err
}

func (r *Responder) third(message []byte) (*Arrival, error) {
	payload, toHost, toClient, err := r.state.ReadMessage(nil, message)
	if err != nil && r.purpose == Pair {
		return nil, ErrWrongCode
	}
	if err != nil {
		return nil, lie("the handshake's last message")
	}
	a := &Arrival{Purpose: r.purpose}
	if err := decode(payload, &a.Greeting); err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	a.Identity.Key = Key(r.state.PeerStatic())
	if a.Identity.Verifier, err = a.Greeting.check(); err != nil {
		return nil, err
	}
	a.Session, err = session(r.state, false, r.cfg.Limit, toHost, toClient)
	return a, err
}
