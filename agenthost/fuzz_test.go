package agenthost_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
)

// A fuzzLink is a connection that delivers given frames to the host, and checks each
// frame that the host sends.
type fuzzLink struct {
	t      *testing.T
	frames [][]byte
}

func (l *fuzzLink) Recv() ([]byte, error) {
	if len(l.frames) == 0 {
		return nil, io.EOF
	}
	frame := l.frames[0]
	l.frames = l.frames[1:]
	return frame, nil
}

func (l *fuzzLink) Send(msg []byte) error {
	if !json.Valid(msg) {
		l.t.Errorf("sent %q; want JSON", msg)
	}
	return nil
}

func (l *fuzzLink) Close(error) error { return nil }

// FuzzServe sends a valid initialize and then arbitrary frames. Every frame that the
// host sends must be valid.
func FuzzServe(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var sent [][]byte
		for line := range bytes.Lines(data) {
			if name, frame, ok := bytes.Cut(line, []byte("> ")); ok && len(name) == 1 {
				sent = append(sent, bytes.TrimSpace(frame))
			}
		}
		f.Add(bytes.Join(sent, []byte("\n")))
	}
	f.Add([]byte(`{"id":1,"method":"tools/call","channel":"mcp://refhost/ZGVtbzovczE/tasks","params":{"name":"add_task","arguments":{"text":"x"},"_meta":{"progressToken":[]}}}
{"method":"notifications/cancelled","params":{"channel":"mcp://refhost/ZGVtbzovczE/tasks","requestId":1}}
{"id":2,"method":"authenticate","params":{"resource":"https://tasks.mcp.example/","token":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := scripted.New(agenthost.Config{MCP: []agenthost.MCPServer{{Name: "tasks"}}})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		frames := [][]byte{[]byte(`{"id":0,"method":"initialize","params":{"clientId":"f","protocolVersions":["0.9.0"],"capabilities":{"mcpApps":{}}}}`),
			[]byte(`{"id":0,"method":"createSession","params":{"channel":"demo:/s1"}}`)}
		for frame := range bytes.SplitSeq(data, []byte("\n")) {
			frames = append(frames, bytes.Clone(frame))
		}
		if err := h.Serve(&fuzzLink{t: t, frames: frames}); err != nil {
			t.Errorf("serve() = %v; want the client's end", err)
		}
	})
}
