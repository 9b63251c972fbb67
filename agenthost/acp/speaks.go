package acp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"

	"ahprelay/internal/acp"
)

// ErrOther reports that a command does not speak the Agent Client Protocol.
var ErrOther = errors.New("the command does not speak the Agent Client Protocol")

// askTime is how long Speaks waits for an answer.
const askTime = 30 * time.Second

// Speaks starts a command for a moment and asks which protocol it speaks. It returns
// the program of an agent, or [ErrOther]. Its request is a valid first request of both
// the Agent Client Protocol and the Agent Host Protocol: each ignores the members of
// the other.
func Speaks(ctx context.Context, command []string, stderr io.Writer) (Program, error) {
	found, err := absolute(command)
	if err != nil {
		return Program{}, err
	}
	p, err := start(Config{Program: Program{Name: command[0], Command: found}, Stderr: stderr}, "", refuser{})
	if err != nil {
		return Program{}, err
	}
	defer p.end()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var result acp.InitializeResponse
	err = p.conn.Call(ctx, "initialize", struct {
		acp.InitializeRequest
		Channel          string   `json:"channel"`
		ClientID         string   `json:"clientId"`
		ProtocolVersions []string `json:"protocolVersions"`
	}{
		InitializeRequest: acp.InitializeRequest{ProtocolVersion: version, ClientInfo: &acp.Implementation{Name: "ahp-relay"}, ClientCapabilities: capabilities()},
		Channel:           "ahp-root://", ClientID: "host-agent", ProtocolVersions: []string{"1.0.0", "0.9.0", "0.8.0"},
	}, &result)
	if result.ProtocolVersion != 0 || err != nil {
		if wrong := wrongVersion(result, err); wrong != nil {
			return Program{}, fmt.Errorf("%s: %w", command[0], wrong)
		}
	}
	if err != nil || result.ProtocolVersion == 0 { // in AHP, the version is a text
		return Program{}, errors.Join(ErrOther, err)
	}
	name := ""
	if result.AgentInfo != nil {
		name = plainName(result.AgentInfo.Name)
	}
	name = cmp.Or(name, plainName(command[0]), "agent")
	title := name
	if result.AgentInfo != nil {
		title = cmp.Or(result.AgentInfo.Title, title)
	}
	return Program{Name: name, Title: title, Command: found}, nil
}

var notPlain = regexp.MustCompile(`^[^a-z]+|[^a-z0-9-]+`)

// plainName derives a name that [Parse] accepts from the agent's own name, or returns
// "".
func plainName(name string) string {
	name = strings.TrimSuffix(path.Base(strings.ToLower(name)), "-acp")
	name = strings.Trim(notPlain.ReplaceAllString(name, ""), "-")
	name = name[:min(len(name), 32)]
	if !namePattern.MatchString(name) {
		return ""
	}
	return name
}
