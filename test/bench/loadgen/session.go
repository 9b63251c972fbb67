package loadgen

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
)

// sessionScheme stands at the beginning of a session's channel. The rest of the channel
// is the length of the session's state.
const sessionScheme = "load-session:/"

// SessionChannel returns the channel of a session with a snapshot of about size bytes.
func SessionChannel(size int) string { return sessionScheme + strconv.Itoa(size) }

//go:embed *.go
var sources embed.FS

// code returns the files of this package, which an agent in the session seems to read.
var code = sync.OnceValue(func() (files []string) {
	names, _ := fs.Glob(sources, "*.go") // never fails, because the pattern is valid
	for _, name := range names {
		if text, err := fs.ReadFile(sources, name); err == nil {
			files = append(files, string(text))
		}
	}
	return files
})

// snapshot returns the snapshot of a session: prompts, a model's answers, and files
// that the agent has read and in part changed.
func snapshot(channel string) (json.RawMessage, error) {
	size, err := strconv.Atoi(strings.TrimPrefix(channel, sessionScheme))
	if err != nil {
		return nil, err
	}
	type part map[string]any
	var turns []part
	files, words := code(), corpus()
	for n, made := 0, 0; made < size; n++ {
		file := files[n%len(files)]
		file = file[:min(len(file), 6000)]
		said, old := string(words[n*400%(len(words)-400):][:400]), file[len(file)/4:][:min(len(file)/2, 2500)]
		turns = append(turns, part{
			"id": fmt.Sprintf("turn-%d", n), "startedAt": "2026-03-04T05:06:07.000Z", "message": part{"text": said[:80], "origin": part{"kind": "user"}},
			"responseParts": []part{
				{"kind": "markdown", "id": fmt.Sprintf("md-%d", n), "content": said},
				{"kind": "toolCall", "toolCall": part{"toolCallId": fmt.Sprintf("tc-%d", n), "toolName": "read_file", "displayName": "Read file", "status": "completed",
					"content": []part{{"type": "text", "text": file}}}},
				{"kind": "toolCall", "toolCall": part{"toolCallId": fmt.Sprintf("te-%d", n), "toolName": "edit_file", "displayName": "Edit file", "status": "completed",
					"content": []part{{"type": "fileEdit", "before": old, "after": strings.ReplaceAll(old, "err", "failed")}}}},
			},
		})
		made += len(file) + len(said) + 2*len(old) + 700
	}
	return json.Marshal(part{"resource": channel, "fromSeq": 0, "state": part{"turns": turns}})
}
