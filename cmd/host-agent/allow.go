package main

import (
	"fmt"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/hostagent"
)

// allowFlags limit clients, whatever their tokens and the relay allow.
type allowFlags struct {
	Allow        auth.Access         `help:"Highest level for every client, even if its token grants a higher level: look, talk, approve, operate or own (see relay token client --help)." enum:"look,talk,approve,operate,own,read,write,admin" default:"own"`
	ApproveOnly  []string            `help:"Subjects that may approve tool calls and operate the host; * stands for any characters. Repeatable. All other subjects get at most the level talk, and no files, even if their tokens grant more. Default: each subject gets the level of its token." placeholder:"SUBJECT" sep:"none"`
	AllowChannel []string            `help:"The only channels and files that clients may reach; * stands for any characters. Repeatable. Default: all." placeholder:"URI" sep:"none"`
	HostFiles    hostagent.HostFiles `help:"Whether the host has the same files as this machine: shared or separate. If shared, the host-agent resolves symbolic links before it compares a file with the channels in a token or --allow-channel. auto means shared, unless --upstream names a different machine." enum:"auto,shared,separate" default:"auto"`
	AllowFiles   bool                `help:"With --allow look, talk or approve, or with --allow-channel: also allow files in the working directories of the client's sessions, if its token does too. All other files need --allow-channel."`
	AllowMethod  []string            `help:"The only methods that clients may call; * stands for any characters. Repeatable. Default: all." placeholder:"NAME"`
	Reverse      bool                `help:"Let the host send requests for the clients' own files. With --no-reverse, the host-agent refuses these requests." default:"true" negatable:""`
}

// Validate refuses malformed patterns.
func (f *allowFlags) Validate() error {
	if err := auth.CheckPatterns("channel", f.AllowChannel); err != nil {
		return fmt.Errorf("--allow-channel: %w", err)
	}
	if err := auth.CheckPatterns("method", f.AllowMethod); err != nil {
		return fmt.Errorf("--allow-method: %w", err)
	}
	for _, subject := range f.ApproveOnly {
		if err := auth.CheckSubject(subject); err != nil {
			return fmt.Errorf("--approve-only: %w", err)
		}
	}
	return nil
}

func (f *allowFlags) policy() *gate.Policy {
	// The policy of the client's token must permit a file too.
	policy := gate.NewPolicy(f.Allow, f.AllowChannel, f.AllowMethod, true)
	if f.AllowFiles {
		policy = policy.WithFolders()
	}
	return &policy
}
