package remembering

import (
	"fmt"
	"testing"

	"ahprelay/ahp"
)

// A floatSocket is a connection to a host that writes the number of each request as floating point in its
// answer.
type floatSocket struct{ answers [][]byte }

func (s *floatSocket) Read() ([]byte, bool, error) {
	if len(s.answers) == 0 {
		return nil, false, fmt.Errorf("no further answer")
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	return answer, false, nil
}

func (s *floatSocket) Write(message []byte, _ bool) error {
	env, err := ahp.Peek(message)
	if err == nil && env.Kind == ahp.Request {
		s.answers = append(s.answers, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s.0,"result":{"snapshot":{"state":{}}}}`, env.ID))
	}
	return err
}

func (*floatSocket) Close(string) {}

// TestAnswersInAnyNotationAreRead reads a session at a host that writes numbers as floating point. The reader must
// recognize the answer by the number of its request.
func TestAnswersInAnyNotationAreRead(t *testing.T) {
	r := &reader{sock: &floatSocket{}}
	if state, err := r.subscribe("s:/1", ""); string(state) != "{}" || err != nil {
		t.Errorf("the reader gets the state %s, %v; want {}", state, err)
	}
}
