package main

import (
	"fmt"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
)

type clientTokenCmd struct {
	dataFlag
	Host    []string      `help:"Host that the token is for; * in it stands for any characters, alone for all hosts. May be repeated." required:"" placeholder:"HOST"`
	Subject string        `help:"Who uses the token: a name for each person or program. Those with one name are one to the host and share their files; it stands in logs, and relay revoke takes it." required:"" placeholder:"NAME"`
	TTL     time.Duration `help:"How long the token is good." default:"720h" name:"ttl"`
	Level   auth.Access   `help:"What the token allows: look (sessions and chats), talk (and turns, the queue, answers), approve (and what agents ask for), operate (everything at the host: a shell there), own (and sharing)." enum:"look,talk,approve,operate,own,read,write,admin" default:"operate"`
	Access  auth.Access   `help:"The older name of --level: read is look, write is operate." enum:"read,write," default:"" hidden:""`
	Tenant  string        `help:"Tenant that the hosts belong to." default:"default"`

	Channel        []string `help:"Session, or other channel or file, that the token is for, with what belongs to it; * stands for any characters. May be repeated; without it, all." placeholder:"URI" sep:"none"`
	Method         []string `help:"Method that the token allows; * stands for any characters. May be repeated; without it, all that --level allows." placeholder:"NAME"`
	Files          bool     `help:"Files in the working directories of the sessions that the token is for, too. Without it, levels below operate and --channel reach only files that --channel names."`
	Reverse        bool     `help:"The host may ask this client for the client's own files."`
	Audience       string   `help:"With the level look: who has the token watches with all whose tokens name the same audience, on one connection to the host. The host knows them by this name." placeholder:"NAME"`
	MaxConnections int      `help:"How many connections the token is good for at a time; 0: as the relay is set." placeholder:"N"`
}

// Run prints a client token.
func (c *clientTokenCmd) Run(s *streams) error {
	if c.TTL <= 0 {
		return fmt.Errorf("--ttl is %v; want more than 0, such as 720h", c.TTL)
	}
	level := c.Level
	if c.Access != "" {
		level = level.Less(c.Access)
	}
	return c.print(s, func(keys *auth.Keys) (string, error) {
		return keys.IssueClient(auth.Client{
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
	Host   string        `help:"Name of the host: 1 to 63 of a-z, 0-9 and -." required:"" placeholder:"HOST"`
	TTL    time.Duration `help:"How long the token is good: the host-agent shows it each time that it needs credentials." default:"8760h" name:"ttl"`
	Tenant string        `help:"Tenant that the host belongs to." default:"default"`
}

// Run prints a host enrolment token.
func (c *hostTokenCmd) Run(s *streams) error {
	if err := ahp.CheckName("--host", c.Host); err != nil {
		return err
	}
	if c.TTL <= 0 {
		return fmt.Errorf("--ttl is %v; want more than 0, such as 8760h", c.TTL)
	}
	return c.print(s, func(keys *auth.Keys) (string, error) {
		return keys.IssueHost(auth.Enrolment{Tenant: c.Tenant, Host: c.Host, Expires: time.Now().Add(c.TTL)})
	})
}
