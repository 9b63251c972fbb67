// Command embed runs a relay and a host-agent inside of a program, and prints the
// host's address for clients. Its argument is a URL, or a command with arguments:
//
//	go run ./docs/examples/embed ws://127.0.0.1:8081
//	go run ./docs/examples/embed python3 docs/examples/stdio-host/host.py
package main

import (
	"context"
	"fmt"
	"log"
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
	fmt.Printf("%s/ahp/here?access_token=%s\n", strings.Replace(relay.URL(), "http", "ws", 1), looks)
	return agent.Run(ctx)
}
