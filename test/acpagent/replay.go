package acpagent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// replay is an agent that says what a recorded agent said. A recording has one message
// per line, behind "> " if it went to the agent and "< " if the agent sent it.
//
// The messages from the agent follow when the client has sent a message like the one
// recorded before them: a request of the same method, or an answer. Ids of answers are
// those of the client.
func replay(file string, in io.Reader, out io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	client := bufio.NewScanner(in)
	client.Buffer(nil, 16<<20)
	ids := map[string]json.RawMessage{} // the client's ids by the recorded
	for line := range strings.Lines(string(text)) {
		recorded := strings.TrimSpace(line[min(2, len(line)):])
		var m map[string]json.RawMessage
		if json.Unmarshal([]byte(recorded), &m) != nil {
			continue
		}
		if strings.HasPrefix(line, "> ") {
			sent, err := like(client, m)
			if err != nil {
				return err
			}
			if m["method"] != nil {
				ids[string(m["id"])] = sent["id"]
			}
			continue
		}
		if m["method"] == nil {
			m["id"] = ids[string(m["id"])]
		}
		message, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if _, err := out.Write(append(message, '\n')); err != nil {
			return err
		}
	}
	for client.Scan() { // the client closes
	}
	return nil
}

// like reads the client's messages up to one like the recorded message.
func like(client *bufio.Scanner, recorded map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	for client.Scan() {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(client.Bytes(), &m); err != nil {
			return nil, err
		}
		if string(m["method"]) == string(recorded["method"]) {
			return m, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("the client never sent %s", recorded["method"]), client.Err())
}
