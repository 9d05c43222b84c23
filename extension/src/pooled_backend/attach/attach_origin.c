/*-------------------------------------------------------------------------
 *
 * attach_origin.c
 *		A pool's backend is let in by the line that let its client in.
 *
 * Problem: the dispatcher opens backends over the server's Unix socket, as the
 * server's own system user.  Where pg_hba.conf says "local all all peer", as
 * Debian's does, it would get in as no other role: neither for a client that
 * is that role's own system user, nor for one that came over TCP and proved
 * itself by a password.
 *
 * What PostgreSQL guarantees: a client's address and socket mean nothing to a
 * starting backend until ClientAuthentication() (auth.c), where check_hba()
 * looks for the line by port->raddr, and auth_peer() asks port->sock who is at
 * the other end.  Before that, and with the whole startup packet read, the
 * backend calls out in one case: it answers protocol options that it does not
 * know ("_pq_." and a name) with NegotiateProtocolVersion
 * (ProcessStartupPacket() in postmaster.c, in backend_startup.c since 17),
 * which goes through PqCommMethods, a variable that forked children inherit.
 *
 * Decision: the dispatcher sends such an option, and says in pg_baton.attach
 * for whom it opens the backend.  From there until ClientAuthentication_hook
 * the address is that client's, and for a client of a Unix socket the socket,
 * too, of which the dispatcher sends a descriptor once it has read the
 * message.  So the server itself decides by its own rules, as it would if the
 * client had come to its own port.  Every other backend sends its first
 * message through us, and forgets us.
 *
 * Who may do so: whoever knows the slot's attach_token, which the dispatcher
 * has just written to CONTROL.  None but the server's system user can read
 * that, and such a one is superuser anyway.
 *
 * Invariant: nothing is ever sent to the client's socket from here.  If there
 * is something to say before authentication is over, the backend's own socket
 * is put back first.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/memutils.h"

#include "attach_origin.h"
#include "backend_entry.h"
#include "channel.h"
#include "client_port.h"
#include "client_ticket.h"
#include "control.h"
#include "other_hooks.h"
#include "parameters.h"
#include "shown_certificate.h"
#include "trusted_hba.h"

#define NEGOTIATE_PROTOCOL_VERSION 'v'

/* In place of a client: there is none that could prove itself again. */
#define TRUSTED_OPTION "_pq_.pg_baton_trusted"

static const PQcommMethods *server_methods = NULL;
static PQcommMethods methods;

/* What is a client's while authentication goes on, and what it was before. */
static bool client_is_assumed = false;
static BatonPortPeer own_peer;

/*
 * The client as pg_baton.attach names it: ...:<family>:<address in hex>:<TLS>,
 * the last one 0 without, 1 with TLS, 2 with a certificate.  Then follow its
 * common name and its distinguished name, in hex.
 */
typedef struct Origin
{
	uint16		family;
	uint8		address[16];
	bool		is_secure;		/* it has come by TLS */
	char	   *common_name;	/* NULL: none, or no certificate */
	char	   *distinguished_name; /* NULL: no certificate */
} Origin;

static bool
read_address(const char *hex, uint8 *address)
{
	for (int i = 0; i < 16; i++)
	{
		unsigned int byte;

		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return false;
		address[i] = (uint8) byte;
	}
	return true;
}

/* Text in hex up to the next colon or blank, which *at is moved to. */
static char *
read_name(const char **at)
{
	Size		length = strcspn(*at, ": ");
	char	   *name = MemoryContextAllocZero(TopMemoryContext, length / 2 + 1);

	for (Size i = 0; i + 1 < length; i += 2)
	{
		unsigned int byte;

		if (sscanf(*at + i, "%2x", &byte) != 1)
			break;
		name[i / 2] = (char) byte;
	}
	*at += length;
	return name;
}

static void
read_certificate(const char *at, Origin *origin)
{
	if (*at != ':')
		return;
	at++;
	origin->common_name = read_name(&at);
	if (*at != ':')
		return;
	at++;
	origin->distinguished_name = read_name(&at);
	if (origin->common_name[0] == '\0')
	{
		pfree(origin->common_name);
		origin->common_name = NULL;
	}
}

/*
 * The slot that this backend is started for; NULL if that is not the
 * dispatcher's word.  Options come as they were sent; *rest is what follows the
 * token.
 */
static BatonBackendSlot *
read_slot(const char *options, const char **rest)
{
	const char *value = options == NULL ? NULL : strstr(options, BATON_ATTACH_OPTION);
	unsigned int slot_index;
	unsigned long long token;
	int			read = 0;
	BatonBackendSlot *slot;

	if (value == NULL || BatonControlMemory == NULL)
		return NULL;
	value += strlen(BATON_ATTACH_OPTION);
	if (sscanf(value, "%u:%llx%n", &slot_index, &token, &read) != 2 ||
		slot_index >= BatonControlMade.backend_slots)
		return NULL;

	slot = baton_backend_slot(slot_index);
	if (token == 0 || token != slot->attach_token ||
		pg_atomic_read_u32(baton_atomic_u32(slot->state)) != BATON_BACKEND_STARTING)
		return NULL;
	*rest = value + read;
	return slot;
}

/* What follows the token. */
static bool
read_origin(const char *value, Origin *origin)
{
	unsigned int family;
	unsigned int secure;
	char		hex[33];
	int			read = 0;

	if (sscanf(value, ":%u:%32[0-9a-f]:%u%n", &family, hex, &secure, &read) != 3 ||
		strlen(hex) != 32)
		return false;

	origin->family = (uint16) family;
	origin->is_secure = secure != 0;
	origin->common_name = NULL;
	origin->distinguished_name = NULL;
	if (secure == 2)
		read_certificate(value + read, origin);
	return read_address(hex, origin->address);
}

/* Does the dispatcher vouch for this backend?  See trusted_hba.c. */
static bool
is_vouched_for(const char *body, size_t length)
{
	const size_t header = 2 * sizeof(uint32);	/* version, number of names */

	return length == header + sizeof(TRUSTED_OPTION) &&
		memcmp(body + header, TRUSTED_OPTION, sizeof(TRUSTED_OPTION)) == 0;
}

/* The dispatcher has opened this backend, for that slot. */
static void
begin(BatonBackendSlot *slot)
{
	/* login.c counts connections that are not the pool's */
	slot->pid = MyProcPid;
	baton_entry_begin_as_nobody(&MyProcPort->raddr);
}

/*
 * Waits for the client's socket; -1 if none comes.  Authentication's time
 * limit is in force already (BackendInitialize), and ends the process.
 */
static pgsocket
receive_socket(pgsocket from)
{
	char		byte;
	struct iovec part = {.iov_base = &byte,.iov_len = 1};
	union
	{
		struct cmsghdr header;
		char		space[CMSG_SPACE(sizeof(int))];
	}			control;
	struct msghdr message;
	struct pollfd readable = {.fd = from,.events = POLLIN};
	ssize_t		length;
	pgsocket	received;

	memset(&message, 0, sizeof(message));
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = control.space;
	message.msg_controllen = sizeof(control.space);
	do
	{
		(void) poll(&readable, 1, -1);
		length = recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	} while (length < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK));

	if (length < 0 || baton_descriptors_take(&message, &received, 1) != 1)
		return PGINVALID_SOCKET;
	return received;
}

static void
assume(const Origin *origin)
{
	const BatonPortEnd remote = {.family = origin->family,.address = origin->address};

	client_is_assumed = true;
	own_peer = baton_port_peer();
	baton_port_assume_remote(&remote);
	baton_entry_begin_as_nobody(&MyProcPort->raddr);

	/* For check_hba() alone, which comes before anything is read or written. */
	baton_port_claim_tls(origin->is_secure);

	/* for clientcert, and CheckCertAuth(), which comes later */
	baton_port_set_certificate(origin->distinguished_name != NULL,
							   origin->common_name, origin->distinguished_name);
	if (origin->distinguished_name != NULL)
		(void) baton_certificate_put(MyProcPort, NULL, 0);

	/* over TCP the dispatcher cannot send descriptors, nor does it try */
	if (origin->family == AF_UNIX && own_peer.address.addr.ss_family == AF_UNIX)
	{
		pgsocket	client;

		server_methods->flush();
		client = receive_socket(own_peer.socket);
		if (client != PGINVALID_SOCKET)
			baton_port_set_socket(client);
	}
}

/* The socket is the backend's own again. */
static void
stop_assuming(void)
{
	if (PqCommMethods == &methods)
		PqCommMethods = server_methods;
	if (!client_is_assumed)
		return;

	client_is_assumed = false;
	if (MyProcPort->sock != own_peer.socket)
		close(MyProcPort->sock);
	baton_port_claim_tls(false);
	baton_port_set_peer(&own_peer);
}

void
baton_attach_origin_end(void)
{
	stop_assuming();
	/* those of a TLS connection of the server's own are be_tls_close()'s */
	if (MyProcPort != NULL && !MyProcPort->ssl_in_use)
	{
		baton_port_forget_certificate();
		baton_certificate_remove(MyProcPort);
	}
}

/*
 * Each process's first message; and the next, if that one was about a client
 * and something is to be said before authentication is over.
 */
static int
first_message(char type, const char *body, size_t length)
{
	bool		may_be_ours = !client_is_assumed && type == NEGOTIATE_PROTOCOL_VERSION &&
	MyProcPort != NULL;
	BatonBackendSlot *slot = NULL;
	const char *rest;
	Origin		origin;
	int			result;

	/* the certificate stays: it is looked at after the password */
	stop_assuming();
	if (may_be_ours && baton_ticket_take(body, length))
		return 0;
	if (may_be_ours)
		slot = read_slot(MyProcPort->cmdline_options, &rest);
	if (slot != NULL)
		begin(slot);
	if (slot != NULL && is_vouched_for(body, length))
	{
		baton_trusted_hba_load();
		baton_others_overrule();
	}
	result = server_methods->putmessage(type, body, length);
	if (slot != NULL && read_origin(rest, &origin))
	{
		assume(&origin);
		PqCommMethods = &methods;
	}
	return result;
}

void
baton_attach_origin_init(void)
{
	server_methods = PqCommMethods;
	methods = *server_methods;
	methods.putmessage = first_message;
	PqCommMethods = &methods;
}
