// Command embed runs a relay and a host-agent inside of a program, and prints the
// host's address for clients. Its argument is a URL, or a command with arguments:
//
//	go run ./docs/examples/embed ws://127.0.0.1:8081
//	go run ./docs/examples/embed python3 docs/examples/stdio-host/host.py
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, host []string) error {
	dir, err := os.MkdirTemp("", "embed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	relay, err := gateway.StartRelay(ctx, gateway.RelayConfig{DataDir: dir, Listen: "127.0.0.1:0", AdminListen: "none"})
	if err != nil {
		return err
	}
	defer relay.Close()
	end := time.Now().Add(24 * time.Hour)
	joins, err := relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "here", Expires: end})
	if err != nil {
		return err
	}
	looks, err := relay.Keys().Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"here"}, Access: auth.AccessRead, Expires: end})
	if err != nil {
		return err
	}
	upstream := hostagent.Upstream{Command: host, Stderr: os.Stderr}
	if len(host) == 1 {
		upstream = hostagent.Upstream{URL: host[0]}
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{relay.URL()}, Plain: true, Token: func() (string, error) { return joins, nil }, Upstream: upstream,
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	for !knownHost(ctx, relay.URL(), looks) { // until then, the relay refuses clients with 4504
		select {
		case err := <-ended:
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
	fmt.Printf("%s/ahp/here?access_token=%s\n", strings.Replace(relay.URL(), "http", "ws", 1), looks)
	return <-ended
}

// knownHost reports whether the relay lists the host.
func knownHost(ctx context.Context, relay, token string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, relay+"/api/hosts", nil)
	if err != nil {
		return false
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var list struct{ Hosts []any }
	return json.NewDecoder(response.Body).Decode(&list) == nil && len(list.Hosts) > 0
}
