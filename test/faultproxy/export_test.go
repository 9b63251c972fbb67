package faultproxy

import "net"

// Listener returns the proxy's present listener.
func (p *Proxy) Listener() *net.TCPListener { return p.listener.(*net.TCPListener) }
