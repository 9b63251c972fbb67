package hostagent

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth/gate"
	"ahprelay/hostagent/watch"
)

// A speaker is a connection on which the host-agent itself is the host's client, to do
// something for a person. If it has gates, they judge its messages as on a connection of
// that person.
type speaker struct {
	sock     hostSocket
	clientID string
	gates    *gate.Chain // nil: the caller has checked the permissions
}

func newSpeaker(sock hostSocket, errand string) speaker {
	return speaker{sock: sock, clientID: "ahp-" + errand + "-" + strings.ToLower(rand.Text())}
}

// A forbiddenError reports that the person may not send a message.
type forbiddenError struct{ why string }

// Error is the gate's reason.
func (e *forbiddenError) Error() string { return e.why }

// write sends a message to the host if the gates permit it.
func (s *speaker) write(message []byte) error {
	if s.gates != nil {
		env, err := ahp.Peek(message)
		if err != nil {
			return err
		}
		switch d := s.gates.FromClient(message, &env); d.Verdict {
		case gate.Pass:
		case gate.Replace:
			message = d.Message
		default:
			return &forbiddenError{reasonOf(d.Message)}
		}
	}
	return s.sock.Write(message, false)
}

func reasonOf(message []byte) string {
	env, err := ahp.Peek(message)
	if err != nil {
		return "you may not do this"
	}
	if why := ahp.TextOf(env.Error, "message"); why != "" {
		return why
	}
	if why := ahp.TextOf(env.Params, "rejectionReason"); why != "" {
		return why
	}
	return "you may not do this"
}

func (s *speaker) greet(id int) error {
	const hello = `{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":%s,"capabilities":{}}}`
	if err := s.write(fmt.Appendf(nil, hello, id, s.clientID, watch.Versions)); err != nil {
		return err
	}
	greeting, err := watch.FirstAnswer(greetingSocket{s.sock, s.heard})
	if err == nil && greeting.Error != nil {
		err = errors.New("the host refused initialize")
	}
	return err
}

// A greetingSocket shows the host's messages to the gates.
type greetingSocket struct {
	hostSocket
	heard func(message []byte)
}

func (g greetingSocket) Read() ([]byte, bool, error) {
	message, binary, err := g.hostSocket.Read()
	if err == nil {
		g.heard(message)
	}
	return message, binary, err
}

// heard shows a host message to the gates, which learn the host's state from it.
func (s *speaker) heard(message []byte) {
	if s.gates == nil {
		return
	}
	if env, err := ahp.Peek(message); err == nil {
		s.gates.FromHost(message, &env)
	}
}

// request sends a request about a channel. more holds additional members of the params, as
// JSON.
func (s *speaker) request(id int, method string, channel []byte, more string) error {
	return s.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":%s%s}}`, id, method, channel, more))
}

func (s *speaker) dispatch(channel, action []byte) error {
	return s.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":%s,"clientSeq":1,"action":%s}}`, channel, action))
}

// next returns the host's next message. It answers the host's requests with an error. Of a
// message above the limit, it returns only the envelope.
func (s *speaker) next() (ahp.Envelope, error) {
	for {
		message, _, err := s.sock.Read()
		if skip, ok := errors.AsType[*skippedError](err); ok {
			return skip.env, nil
		}
		if err != nil {
			return ahp.Envelope{}, err
		}
		s.heard(message)
		env, err := ahp.Peek(message)
		switch {
		case err != nil: // the next message may be readable
		case env.Kind == ahp.Request:
			if err := s.sock.Write(ahp.AppendError(nil, env.ID, ahp.CodeMethodNotFound, "this client only answers", nil), false); err != nil {
				return env, err
			}
		default:
			return env, nil
		}
	}
}

func quoted(text string) []byte {
	data, _ := json.Marshal(text) // a string always encodes
	return data
}
