# PostgreSQL's own test clusters, unchanged but for one thing: the pool stands on the port
# that the test knows, and the server on another that nobody is told.
#
# Loaded before a test (perl -MPooledCluster), it wraps six of the methods of
# PostgreSQL::Test::Cluster, in 15 to 18.  All by which a test calls a node (connstr, PGPORT,
# psql, pg_basebackup, primary_conninfo) goes by $node->port; pg_ctl asks postmaster.pid, so
# it finds the server.  What loads the pool is in TEMP_CONFIG, which run.py writes.

package PooledCluster;

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More ();
use Time::HiRes qw(usleep);

use constant { WAIT_S => 60, LINES_S => 5, BETWEEN_LOOKS_US => 20_000 };

# After what has written "port = ..." into the node's postgresql.conf.
sub stand_before
{
	my ($node) = @_;

	$node->{_server_port} //= PostgreSQL::Test::Cluster::get_free_port();
	$node->append_conf('postgresql.conf',
		"port = $node->{_server_port}\npg_baton.port = " . $node->port);
}

# A test goes on as soon as pg_ctl says that the server is there; the pool follows.
sub wait_for_pool
{
	my ($node) = @_;

	# It could not start, as some tests want it.
	return unless defined $node->{_pid};
	local %ENV = $node->_get_env();
	for (my $looks = 0; $looks * BETWEEN_LOOKS_US < WAIT_S * 1_000_000; $looks++)
	{
		return
		  if run_log([ 'pg_isready', '-q', '-h', $node->host, '-p', $node->port ]);
		usleep(BETWEEN_LOOKS_US);
	}
	Test::More::BAIL_OUT('no pool on port ' . $node->port);
}

sub wrap
{
	my ($name, $before, $after) = @_;
	my $full = "PostgreSQL::Test::Cluster::$name";

	no strict 'refs';
	no warnings 'redefine';
	my $method = \&$full;
	*$full = sub {
		$before->($_[0]) if defined $before;
		my @got = wantarray ? $method->(@_) : scalar $method->(@_);
		$after->($_[0]);
		return wantarray ? @got : $got[0];
	};
}

# A test goes on as soon as the postmaster has the signal, which lets nobody in by the old
# rules from there on.  On the pool's port they count until its launcher has read the new ones.
sub wait_for_reload
{
	my ($node, $offset) = @_;

	for (my $looks = 0; $looks * BETWEEN_LOOKS_US < WAIT_S * 1_000_000; $looks++)
	{
		return
		  if slurp_file($node->logfile, $offset) =~ /pg_baton: parameters reloaded/;
		usleep(BETWEEN_LOOKS_US);
	}
	Test::More::BAIL_OUT('the pool has not read the parameters');
}

# From 18 on a test waits in the log for the end of the process that has refused its client.
# The pool refuses most without one, and its last word is this.
sub heed_refusals
{
	my $wait_for_log = \&PostgreSQL::Test::Cluster::wait_for_log;

	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::wait_for_log = sub {
		my ($node, $regexp, $offset) = @_;
		$regexp = qr/FATAL: |$regexp/
		  if $regexp =~ /forked new client backend/;
		return $wait_for_log->($node, $regexp, $offset);
	};
}

# The log writer writes a line soon after its event, and possibly after the client has its
# answer (limits.md); a test reads the log at once.
sub heed_late_lines
{
	my $log_check = \&PostgreSQL::Test::Cluster::log_check;

	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::log_check = sub {
		my ($node, $name, $offset, %params) = @_;
		for (my $looks = 0; $looks * BETWEEN_LOOKS_US < LINES_S * 1_000_000; $looks++)
		{
			my $log = slurp_file($node->logfile, $offset);

			last unless grep { $log !~ $_ } @{ $params{log_like} // [] };
			usleep(BETWEEN_LOOKS_US);
		}
		return $log_check->($node, $name, $offset, %params);
	};
}

heed_refusals();
heed_late_lines();
my $log_size;
wrap('init', undef, \&stand_before);
wrap('init_from_backup', undef, \&stand_before);
wrap('start', undef, \&wait_for_pool);
wrap('restart', undef, \&wait_for_pool);
wrap('reload', sub { $log_size = -s $_[0]->logfile }, sub { wait_for_reload($_[0], $log_size) });

1;
