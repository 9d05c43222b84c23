/*-------------------------------------------------------------------------
 *
 * gss_startup.c
 *		A client's request for GSSAPI encryption, answered by the backend that
 *		becomes its own.
 *
 * Problem: the keys of such a connection are a library's state in one process
 * (port->gss), and the startup packet comes encrypted.  So the backend must
 * negotiate, before anybody knows who the client is; but the startup packet that
 * has brought it a ticket is the dispatcher's, and the server reads no second one
 * (ProcessStartupPacket() is static, and calls out in one place only: see
 * opening.c).
 *
 * What PostgreSQL guarantees, in 15 to 18 (postmaster.c, backend_startup.c since
 * 17): to answer 'G' and to call secure_open_gssapi() is all that
 * ProcessStartupPacket() does about GSSENCRequest.  pqcomm.c reads and writes
 * encrypted from then on, by port->gss.  After NegotiateProtocolVersion, where we
 * are called, it looks at nothing but what it has put into Port, am_walsender and
 * am_db_walsender, and FrontendProtocol: the check for a user's name, the
 * database's default, limits of length, and whether the server takes connections
 * come after it.
 *
 * Decision: the dispatcher's packet names nobody.  Here encryption begins, the
 * client's own packet is read, and put where the server would have put it, with
 * the server's own checks and words; then the server goes on.  A cancel request
 * (libpq encrypts them, too, from 17 on) is the dispatcher's to carry out, who
 * closes the connection when that is done.
 *
 * Time limits are those of any startup packet: authentication_timeout is running
 * (BackendInitialize()), and the dispatcher closes the client's connection when
 * its own limits at the door say so.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>

#include "libpq/libpq.h"
#include "libpq/libpq-be.h"
#include "libpq/pqcomm.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "baton_shared.h"
#include "channel.h"
#include "client_port.h"
#include "gss_startup.h"
#include "majors.h"

/* One of a client's first packets, without its length; a zero follows it. */
typedef struct FirstPacket
{
	char	   *bytes;
	int32		length;
} FirstPacket;

/*
 * Answers 'G' and has the server do the rest.  What fails is in the log, and not
 * told: the client cannot read it.
 */
static void
open_encryption(void)
{
#ifdef ENABLE_GSS
	const char *is_traced = GetConfigOption("trace_connection_negotiation", true, false);

	/* 17 and later */
	if (is_traced != NULL && strcmp(is_traced, "on") == 0)
		ereport(LOG,
				(errmsg("GSSENCRequest accepted")));
	while (send(MyProcPort->sock, "G", 1, MSG_NOSIGNAL) != 1)
	{
		if (errno == EINTR)
			continue;
		ereport(COMMERROR,
				(errcode_for_socket_access(),
				 errmsg("failed to send GSSAPI negotiation response: %m")));
		proc_exit(0);
	}
	if (secure_open_gssapi(MyProcPort) == -1)
		proc_exit(0);

	/*
	 * there is none: the dispatcher has sent its packet, and reads ahead of
	 * none
	 */
	if (baton_input_is_buffered())
		ereport(FATAL,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("received unencrypted data after GSSAPI encryption request"),
				 errdetail("This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.")));
#else
	ereport(FATAL,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("this server is built without GSSAPI")));
#endif
}

/* As ProcessStartupPacket() reads it after encryption has begun. */
static FirstPacket
read_packet(void)
{
	FirstPacket packet;
	int32		length;

	pq_startmsgread();
	if (pq_getbytes((char *) &length, sizeof(length)) == EOF)
		proc_exit(0);
	packet.length = (int32) pg_ntoh32(length) - (int32) sizeof(length);
	if (packet.length < (int32) sizeof(ProtocolVersion) ||
		packet.length > MAX_STARTUP_PACKET_LENGTH)
	{
		ereport(COMMERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid length of startup packet")));
		proc_exit(0);
	}

	packet.bytes = MemoryContextAllocZero(TopMemoryContext, packet.length + 1);
	if (pq_getbytes(packet.bytes, packet.length) == EOF)
	{
		ereport(COMMERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("incomplete startup packet")));
		proc_exit(0);
	}
	pq_endmsgread();
	return packet;
}

static void
check_protocol(ProtocolVersion protocol)
{
	if (PG_PROTOCOL_MAJOR(protocol) < PG_PROTOCOL_MAJOR(PG_PROTOCOL_EARLIEST) ||
		PG_PROTOCOL_MAJOR(protocol) > PG_PROTOCOL_MAJOR(PG_PROTOCOL_LATEST))
		ereport(FATAL,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("unsupported frontend protocol %u.%u: server supports %u.0 to %u.%u",
						PG_PROTOCOL_MAJOR(protocol), PG_PROTOCOL_MINOR(protocol),
						PG_PROTOCOL_MAJOR(PG_PROTOCOL_EARLIEST),
						PG_PROTOCOL_MAJOR(PG_PROTOCOL_LATEST),
						PG_PROTOCOL_MINOR(PG_PROTOCOL_LATEST))));
}

static void
take_replication(const char *value)
{
	if (strcmp(value, "database") == 0)
	{
		am_walsender = true;
		am_db_walsender = true;
	}
	else if (!parse_bool(value, &am_walsender))
		ereport(FATAL,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for parameter \"%s\": \"%s\"",
						"replication", value),
				 errhint("Valid values are: \"false\", 0, \"true\", 1, \"database\".")));
}

/* Texts stay where they are: the packet is never freed. */
static void
take_option(char *name, char *value, List **unrecognized)
{
	if (strcmp(name, "database") == 0)
		baton_port_set_database(value);
	else if (strcmp(name, "user") == 0)
		baton_port_set_user(value);
	else if (strcmp(name, "options") == 0)
		baton_port_set_options(value);
	else if (strcmp(name, "replication") == 0)
		take_replication(value);
	else if (strncmp(name, "_pq_.", strlen("_pq_.")) == 0)
		*unrecognized = lappend(*unrecognized, name);
	else
	{
		baton_port_add_parameter(name, value);
		if (strcmp(name, "application_name") == 0)
			baton_port_set_application_name(baton_clean_ascii(value));
	}
}

/* As SendNegotiateProtocolVersion(), which is static. */
static void
negotiate_version(ProtocolVersion protocol, List *unrecognized)
{
	StringInfoData message;
	ListCell   *cell;

	pq_beginmessage(&message, 'v');
	pq_sendint32(&message, Min(protocol, PG_PROTOCOL_LATEST));
	pq_sendint32(&message, list_length(unrecognized));
	foreach(cell, unrecognized)
		pq_sendstring(&message, (char *) lfirst(cell));
	pq_endmessage(&message);
}

/* As ProcessStartupPacket() does it, up to where it calls us. */
static void
take_packet(const FirstPacket *packet, ProtocolVersion protocol)
{
	int32		offset = sizeof(ProtocolVersion);
	List	   *unrecognized = NIL;

	baton_port_set_protocol(protocol);
	FrontendProtocol = baton_frontend_protocol(protocol);
	check_protocol(protocol);

	while (offset < packet->length)
	{
		char	   *name = packet->bytes + offset;
		int32		value_offset = offset + (int32) strlen(name) + 1;
		char	   *value = packet->bytes + value_offset;

		if (*name == '\0')
			break;				/* the packet's terminator */
		if (value_offset >= packet->length)
			break;				/* no value: refused below */
		take_option(name, value, &unrecognized);
		offset = value_offset + (int32) strlen(value) + 1;
	}
	if (offset != packet->length - 1)
		ereport(FATAL,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid startup packet layout: expected terminator as last byte")));

	if (PG_PROTOCOL_MINOR(protocol) > PG_PROTOCOL_MINOR(PG_PROTOCOL_LATEST) ||
		unrecognized != NIL)
		negotiate_version(protocol, unrecognized);
}

void
baton_gss_startup(int dispatcher)
{
	MemoryContext outer_context = MemoryContextSwitchTo(TopMemoryContext);
	FirstPacket packet;
	ProtocolVersion protocol;

	open_encryption();
	packet = read_packet();
	memcpy(&protocol, packet.bytes, sizeof(protocol));
	protocol = pg_ntoh32(protocol);

	/* one that has gone has nothing to show or to limit any more */
	(void) baton_channel_send(dispatcher, BATON_MSG_STARTUP, 0, packet.bytes, packet.length);
	if (protocol == CANCEL_REQUEST_CODE)
		proc_exit(0);
	take_packet(&packet, protocol);
	MemoryContextSwitchTo(outer_context);
}
