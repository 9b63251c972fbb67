package main

import (
	"fmt"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

type clientTokenCmd struct {
	dataFlag
	Host    []string      `help:"Host that this token may use. * stands for any characters; a single * means all hosts. Repeatable." required:"" placeholder:"HOST"`
	Subject string        `help:"The token's user: a name for each person or program. The host treats users with the same name as one, with shared files. The name appears in logs, and relay revoke accepts it." required:"" placeholder:"NAME"`
	TTL     time.Duration `help:"The token's lifetime." default:"720h" least:"1s" name:"ttl"`
	Level   auth.Access   `help:"Access granted: look (read sessions and chats), talk (also turns, the queue, answers), approve (also tool calls), operate (everything at the host, including a shell), own (also sharing)." enum:"look,talk,approve,operate,own,read,write,admin" default:"operate"`
	Access  auth.Access   `help:"Older name of --level: read is look, write is operate." enum:"read,write," default:"" hidden:""`
	Tenant  string        `help:"The hosts' tenant." default:"default"`

	Channel        []string `help:"Sessions, other channels or files for this token, with everything that belongs to them; * stands for any characters. Repeatable; without it, all." placeholder:"URI" sep:"none"`
	Method         []string `help:"Methods allowed; * stands for any characters. Repeatable; without it, all methods of --level." placeholder:"NAME"`
	Files          bool     `help:"Include files in the sessions' working directories. Without it, levels below operate, and --channel, reach only files named by --channel."`
	Reverse        bool     `help:"Let the host request the client's own files even if others use the host; below operate, only for reading."`
	Audience       string   `help:"With the level look: clients whose tokens have the same audience and access share a connection to the host where possible. The host sees this name as the client's ID." placeholder:"NAME"`
	MaxConnections int      `help:"Concurrent connections allowed for the token at each relay; 0: the relay's limit." placeholder:"N"`
}

func (c *clientTokenCmd) Run(s *streams) error {
	level := c.Level
	if c.Access != "" {
		level = level.Less(c.Access)
	}
	return c.print(s, func(keys *auth.Keys) (string, error) {
		return keys.Tokens().IssueClient(auth.Client{
			Tenant: c.Tenant, Subject: c.Subject, Hosts: c.Host, Access: level, Expires: time.Now().Add(c.TTL),
			Channels: c.Channel, Methods: c.Method, Files: c.Files, Reverse: c.Reverse, MaxConnections: c.MaxConnections,
			Audience: c.Audience,
		})
	})
}

// print prints a token and nothing else.
func (d dataFlag) print(s *streams, issue func(*auth.Keys) (string, error)) error {
	keys, err := d.keys()
	if err != nil {
		return err
	}
	token, err := issue(keys)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(s.out, token)
	return err
}

type hostTokenCmd struct {
	dataFlag
	Host   string        `help:"The host's name: 1 to 63 characters from a-z, 0-9 and -." required:"" placeholder:"HOST"`
	TTL    time.Duration `help:"The token's lifetime. host-agent run --token-file presents the token whenever it needs NATS credentials; host-agent enroll uses it up." default:"8760h" least:"1s" name:"ttl"`
	Tenant string        `help:"The host's tenant." default:"default"`
}

func (c *hostTokenCmd) Run(s *streams) error {
	if err := ahp.CheckName("--host", c.Host); err != nil {
		return err
	}
	return c.print(s, func(keys *auth.Keys) (string, error) {
		return keys.Tokens().IssueHost(auth.Enrolment{Tenant: c.Tenant, Host: c.Host, Expires: time.Now().Add(c.TTL)})
	})
}
