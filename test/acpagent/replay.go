package acpagent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// replay is an agent that repeats a recording. Each line of a recording has a message.
// "> " stands before a message to the agent, and "< " before a message from the agent.
//
// The messages from the agent follow when the client has sent a message like the one
// recorded before them: a request of the same method, or an answer. Ids of answers are
// those of the client.
func replay(dir string, in io.Reader, out io.Writer) error {
	file, err := next(dir, os.Getenv(storeVariable))
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text := strings.ReplaceAll(string(data), folderName, os.Getenv(folderVariable))
	client := &listener{lines: bufio.NewScanner(in)}
	client.lines.Buffer(nil, 16<<20)
	ids := map[string]json.RawMessage{} // recorded id to the client's id
	for line := range strings.Lines(text) {
		recorded := strings.TrimSpace(line[min(2, len(line)):])
		var m map[string]json.RawMessage
		if json.Unmarshal([]byte(recorded), &m) != nil {
			continue
		}
		if strings.HasPrefix(line, "> ") {
			sent, err := client.like(m)
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
	for client.lines.Scan() { // runs until the client closes the connection
	}
	return nil
}

// A listener reads the client's messages for a replayed agent.
type listener struct {
	lines *bufio.Scanner
	early []map[string]json.RawMessage // messages that the client sent before the recording has them
}

// like waits for a client's message with the same method as the recorded message, and
// returns it. Messages in between are kept in early.
func (l *listener) like(recorded map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	same := func(m map[string]json.RawMessage) bool { return string(m["method"]) == string(recorded["method"]) }
	if i := slices.IndexFunc(l.early, same); i >= 0 {
		m := l.early[i]
		l.early = slices.Delete(l.early, i, i+1)
		return m, nil
	}
	for l.lines.Scan() {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(l.lines.Bytes(), &m); err != nil {
			return nil, err
		}
		if same(m) {
			return m, nil
		}
		l.early = append(l.early, m)
	}
	return nil, errors.Join(fmt.Errorf("the client has not sent the recorded %s", recorded["method"]), l.lines.Err())
}
